import bisect
import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Start
from load import Load
from prometheus_client.parser import text_string_to_metric_families
from running import Running
from tools import needs
from waiting import DIGIT, ask, eventually, metric, scan

from marina.config.latency import EDGES_S

pytestmark = pytest.mark.e2e

ARRIVED = "ts_inference_requests_total"
ANSWERED = "inference_request_duration_seconds_count"


def bucket_counts(server: Running) -> list[float]:
    page = server.get("/metrics")[1]
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    buckets = [
        sample
        for sample in samples
        if sample.name == "inference_request_duration_seconds_bucket" and sample.labels["code"] == "200"
    ]
    return [bucket.value for bucket in buckets]


def test_arrivals_are_zero_from_the_start_and_own_inferences_never_show(start_tiny: Start) -> None:
    server = start_tiny(wait=False)
    page = eventually(lambda: server.get("/metrics")[1])
    assert f'{ARRIVED}{{model_name="tiny",model_version="1.0"}} 0.0\n' in page
    server.wait_ready(180)
    assert metric(server, ARRIVED) == 0
    assert metric(server, ANSWERED) == 0
    assert ask(server, b"{}") == 200
    eventually(lambda: metric(server, ARRIVED) == 1)
    eventually(lambda: metric(server, ANSWERED) == 1)
    eventually(lambda: metric(server, "marina_in_flight") == 0)


def test_counts_agree_exactly_with_what_was_sent(digits_server: Running) -> None:
    before = {code: metric(digits_server, ANSWERED, code=code) for code in ("200", "400", "415", "422")}
    arrived = metric(digits_server, ARRIVED)
    sent = Counter(
        str(ask(digits_server, *request))
        for request in [(DIGIT, "image/png")] * 150 + [(b"no image", "image/png")] * 30
    )
    unknown = urllib.request.Request(
        f"{digits_server.url}/predictions/unknown", DIGIT, {"Content-Type": "image/png"}, method="POST"
    )
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(unknown)
    assert sent["200"] == 150
    assert sent.total() == 180
    eventually(lambda: metric(digits_server, ARRIVED) - arrived == 180)
    # The access log is read beside the answers.
    eventually(lambda: {code: metric(digits_server, ANSWERED, code=code) - before[code] for code in sent} == sent)
    assert metric(digits_server, ANSWERED, code="404") == 0


def test_shed_requests_count_as_arrived_and_as_503(start_tiny: Start) -> None:
    server = start_tiny(queue=2)
    with Load(server.ports.inference, "/predictions/tiny", b'{"sleep_s": 0.2}', 50) as load:
        eventually(lambda: len(load.sent) > 60)
        outcomes = load.finish()
    assert set(outcomes) == {"200", "503"}
    eventually(lambda: metric(server, ARRIVED) == len(load.sent))
    eventually(lambda: {code: metric(server, ANSWERED, code=code) for code in outcomes} == outcomes)


def test_p99_of_the_histogram_is_the_clients_within_one_bucket(digits_server: Running) -> None:
    # Slow enough that a busy client's own delay is small against it.
    body = scan(2048)
    before = bucket_counts(digits_server)
    with Load(digits_server.ports.inference, "/predictions/digits", body, 7, "image/png", keep=True) as load:
        eventually(lambda: len(load.sent) >= 120)
        assert set(load.finish()) == {"200"}
    eventually(lambda: bucket_counts(digits_server)[-1] - before[-1] == len(load.sent))
    below = [now - then for now, then in zip(bucket_counts(digits_server), before, strict=True)]
    servers = bisect.bisect_left(below, 0.99 * below[-1])
    clients = bisect.bisect_left(EDGES_S, load.latency_s(0.99))
    assert EDGES_S[servers] > 0.03
    assert abs(servers - clients) <= 1


def test_promtool_has_nothing_to_say_of_the_page(digits_server: Running) -> None:
    needs("promtool", package="prometheus")
    page = digits_server.get("/metrics")[1]
    result = subprocess.run(["promtool", "check", "metrics"], input=page, text=True, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_page_has_everything_of_the_contract(digits_server: Running) -> None:
    assert ask(digits_server, DIGIT, "image/png") == 200
    names = {family.name for family in text_string_to_metric_families(digits_server.get("/metrics")[1])}
    assert names >= {
        "inference_artifact_info",
        "inference_batch_size",
        "inference_request_duration_seconds",
        "inference_stage_duration_seconds",
        "marina_in_flight",
        "marina_machine_info",
        "marina_package_info",
        "marina_ready",
        "marina_worker_resident_memory_bytes",
        "marina_worker_restarts",
        "ts_inference_requests",
    }
    assert metric(digits_server, "marina_worker_resident_memory_bytes", worker="9000") > 20e6


def test_counters_of_a_dead_worker_stay_and_its_files_go(start_tiny: Start) -> None:
    server = start_tiny()
    assert ask(server, b'{"count": 5}') == 200
    assert metric(server, "tiny_counted_total") == 5
    for _ in range(3):
        assert ask(server, b'{"exit": 1}') in (0, 500)
        server.wait_ready(180)
    assert ask(server, b'{"count": 2}') == 200
    assert metric(server, "tiny_counted_total") == 7
    (java,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    run = next(
        item for item in Path(f"/proc/{java}/environ").read_bytes().split(b"\0") if item.startswith(b"MARINA_RUN=")
    )
    assert len(list(Path(run.partition(b"=")[2].decode(), "metrics").glob("counter_*.db"))) == 2


@pytest.fixture
def prometheus(digits_server: Running, tmp_path: Path) -> Iterator[str]:
    needs("prometheus", package="prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    target = f"127.0.0.1:{digits_server.ports.supervisor}"
    scrape = {"job_name": "pod", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    process = subprocess.Popen(
        ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://{address}/api/v1/query?query="
    process.terminate()
    process.wait(120)


def query(url: str, expression: str) -> float | None:
    try:
        with urllib.request.urlopen(url + urllib.parse.quote(expression)) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return None
    return float(result[0]["value"][1]) if result else None


def test_rate_in_a_real_prometheus_is_the_rate_of_the_load(digits_server: Running, prometheus: str) -> None:
    eventually(lambda: query(prometheus, f'{ARRIVED}{{model_name="digits"}}') is not None, within_s=60)
    with Load(digits_server.ports.inference, "/predictions/digits", DIGIT, 40, "image/png", keep=True) as load:
        # A window that lies wholly in the load, with a scrape on either side of it.
        begin = time.monotonic()
        eventually(lambda: time.monotonic() - begin > 12)
        rates = [
            query(prometheus, f"sum(rate({ARRIVED}[8s]))"),
            query(prometheus, "sum(rate(inference_request_duration_seconds_count[8s]))"),
        ]
        assert set(load.finish()) == {"200"}
    assert rates == pytest.approx([40, 40], rel=0.1)
    assert query(prometheus, "marina_ready") == 1
