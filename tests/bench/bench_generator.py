"""What one generator process holds against a trivial local server, with wrk's figure for the same server beside it.

pytest tests/bench/bench_generator.py     fails when 2,500 requests/s or a lag p99 of 5 ms is missed
"""

import base64
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from loadtest_rig import running_server

from marina.loadtest.measuring import Measurement
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest, generate
from marina.loadtest.sending.plan import Expected

WANTED_RPS, WANTED_LAG_MS = 2500.0, 5.0
RATES = (WANTED_RPS, 5000.0, 7500.0, 10_000.0)
SECONDS = 10.0


def load(url: str, rate: float) -> Measurement:
    request = LoadRequest(
        url=f"{url}/predictions/digits",
        body=base64.b64encode(bytes(300)),
        content_type="image/png",
        expected=Expected(form="json", keys=("top_indices", "top_probs")),
    )
    schedule = Schedule(arrivals="poisson", rate=rate, warmup_s=2, duration_s=SECONDS)
    return generate(LoadPlan(request=request, schedule=schedule, timeout_s=10, limit_ms=100))


def row(measurement: Measurement) -> str:
    lag, service = (histogram.percentile(0.99) or 0.0 for histogram in (measurement.lag, measurement.service))
    cpu = max(beat.cpu for beat in measurement.generators[0])
    return (
        f"{measurement.rate:>8,.0f} {measurement.held_rps:>10,.0f} {lag:>12.2f} ms {service:>14.2f} ms "
        f"{cpu:>8.0%} {measurement.failed:>7}"
    )


def wrk(url: str) -> str:
    if shutil.which("wrk") is None:
        return "not installed (apt-get install wrk)"
    command = ["wrk", "-t1", "-c32", "-d5s", f"{url}/predictions/digits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    return f"{float(rate[1]):,.0f} requests/s, closed loop of 32 connections" if rate else "no figure"


def test_one_process_holds_2500_requests_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path) as url, capsys.disabled():
        print("\n   asked       held      lag, p99      service, p99      cpu  errors")
        measurements = []
        for rate in RATES:
            measurements.append(load(url, rate))
            print(row(measurements[-1]), flush=True)
        print(f"wrk: {wrk(url)}")
    lag = measurements[0].lag.percentile(0.99)
    assert measurements[0].held_rps >= 0.99 * WANTED_RPS
    assert lag is not None
    assert lag < WANTED_LAG_MS
