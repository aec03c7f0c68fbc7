"""What the cluster's monitoring would see: a real Prometheus reads real pods, through Marina's own expressions."""

import bisect
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Start
from load import Load
from running import Running
from tools import needs
from waiting import DIGIT, ask, eventually

from marina.config.latency import EDGES_S
from marina.config.load import load_spec
from marina.config.spec import Spec
from marina.k8s.monitoring.adapter import adapter_rules
from marina.k8s.monitoring.catalogue import page_series
from marina.k8s.monitoring.contract import adapter_query, metric_contract
from marina.k8s.monitoring.rules import alert_rules, recording_rules
from marina.k8s.verify.live import check_live, check_page

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUICK, BUSY = "tiny-6b5f9c7d8c-x2k4p", "tiny-6b5f9c7d8c-zz7vq"
SCRAPE_S = 2


class Prometheus:
    """A running one, asked through its API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; None while it starts."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as err:
            if err.code == 503:
                return None
            raise AssertionError(err.read().decode()) from err
        except OSError:
            return None

    def query(self, expression: str) -> dict[str, float]:
        """Values now, by pod; of one without a pod under ''."""
        data = self.get("query", query=expression) or {"result": []}
        return {sample["metric"].get("pod", ""): float(sample["value"][1]) for sample in data["result"]}

    def recorded(self, name: str) -> float:
        """One recorded value, NaN before there is one."""
        return self.query(f'model:{name}{{model="tiny"}}').get("", float("nan"))


Observe = Callable[[Spec, dict[str, Running]], Prometheus]


@pytest.fixture
def observe(tmp_path: Path) -> Iterator[Observe]:
    """Starts a Prometheus with the spec's rules, evaluated more often than in a cluster, that reads servers as pods."""
    program, started = needs("prometheus", package="prometheus"), []

    def start(spec: Spec, pods: dict[str, Running]) -> Prometheus:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        targets = [
            {
                "targets": [f"127.0.0.1:{server.ports.supervisor}"],
                "labels": {"namespace": spec.kubernetes.namespace, "pod": pod, "container": "server"},
            }
            for pod, server in pods.items()
        ]
        interval = f"{spec.kubernetes.monitoring.scrape_interval_s}s"
        scrape = {"job_name": "marina/tiny", "scrape_interval": interval, "static_configs": targets}
        config = {"scrape_configs": [scrape], "rule_files": ["rules.yml"]}
        groups = [group | {"interval": "1s"} for group in recording_rules(spec) + alert_rules(spec)]
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
        files = ["--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        log = (tmp_path / "prometheus.log").open("w")
        process = subprocess.Popen(
            [program, *files, f"--web.listen-address={address}"], cwd=tmp_path, stderr=log, env=os.environ
        )
        started.append((process, log))
        return Prometheus(address)

    yield start
    for process, log in started:
        process.terminate()
        process.wait(120)
        log.close()


def sent_rate(load: Load, window_s: float) -> float:
    """Requests a second that were really given to the server in the last seconds."""
    since = time.monotonic() - window_s
    return sum(request.written is not None and request.written > since for request in load.sent) / window_s


@pytest.mark.alone
def test_an_autoscaler_gets_the_rate_of_each_pod_and_the_rules_what_the_clients_saw(
    start_tiny: Start, observe: Observe, tmp_path: Path
) -> None:
    pods = {QUICK: start_tiny(workers=2), BUSY: start_tiny(queue=2)}
    data = yaml.safe_load(pods[QUICK].spec.file.read_text())
    data["kubernetes"]["monitoring"] = {"scrape_interval_s": SCRAPE_S}
    (tmp_path / "observed.yaml").write_text(json.dumps(data))
    spec = load_spec(tmp_path / "observed.yaml", files=False)
    prometheus = observe(spec, pods)
    rule = adapter_rules(spec)[0]
    # How the adapter finds the metric, then how it asks for it.
    eventually(lambda: len(prometheus.get("series", **{"match[]": rule["seriesQuery"]}) or []) == 2, within_s=60)
    query = adapter_query(rule, spec.kubernetes.namespace, f"{QUICK}|{BUSY}")
    window_s = float(re.findall(r"\[(\d+)s\]", query)[0])
    assert window_s == 4 * SCRAPE_S
    quick = Load(pods[QUICK].ports.inference, "/predictions/tiny", b'{"sleep_s": 0.01}', 40, keep=True)
    busy = Load(pods[BUSY].ports.inference, "/predictions/tiny", b'{"sleep_s": 0.12}', 25)
    with quick, busy:
        begin = time.monotonic()
        eventually(lambda: time.monotonic() - begin > window_s + 2 * SCRAPE_S)
        rates = prometheus.query(query)
        sent = {QUICK: sent_rate(quick, window_s), BUSY: sent_rate(busy, window_s)}
        outcomes = quick.finish() + busy.finish()
    assert set(outcomes) == {"200", "503"}
    assert rates == pytest.approx(sent, rel=0.05)
    assert sent == pytest.approx({QUICK: 40, BUSY: 25}, rel=0.1)

    total, shed = outcomes.total(), outcomes["503"]
    assert shed > 50
    eventually(lambda: prometheus.query("sum(ts_inference_requests_total)") == {"": total}, within_s=60)
    for name in ("inference_failed", "inference_shed"):
        eventually(
            lambda name=name: prometheus.recorded(f"{name}:ratio_rate5m") == pytest.approx(shed / total, rel=0.02)
        )
    slow = sum(request.outcome == "200" for request in busy.sent) / outcomes["200"]
    # On a busy machine some of the quick ones are slow too, for their clients more of them than for the server.
    limit_s = spec.slo.p99_ms / 1000 if spec.slo else 0
    seen = (
        sum(request.outcome == "200" and request.latency_s > limit_s for request in quick.sent + busy.sent)
        / outcomes["200"]
    )
    eventually(lambda: 0.9 * slow < prometheus.recorded("inference_slow:ratio_rate5m") < 1.1 * seen)
    edges, p99_s = EDGES_S, busy.latency_s(1 - 0.01 / slow)
    bucket = bisect.bisect_left(edges, prometheus.recorded("inference_duration_seconds:p99_rate5m"))
    assert abs(bucket - bisect.bisect_left(edges, p99_s)) <= 1

    health = {rule["name"]: rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
    assert set(health.values()) == {"ok"}
    pending = prometheus.get("query", query='ALERTS{alertname="MarinaRequestsShed"}')["result"]
    assert [alert["metric"]["alertstate"] for alert in pending] == ["pending"]


def test_a_live_page_keeps_the_contract_and_each_metric_that_is_missing_is_found(digits_server: Running) -> None:
    spec = digits_server.spec
    # The page has the time of the start a moment after the server says that it is ready.
    eventually(lambda: check_live(spec, digits_server.pages) == [])
    assert check_live(spec, f"{digits_server.pages}/metrics") == []
    page = digits_server.get("/metrics")[1]
    assert 'inference_errors_total{kind="malformed",model="digits"} ' in page
    needed = {metric.series.name for metric in metric_contract(spec) if metric.series in page_series(spec)}
    assert len(needed) > 15
    for name in needed:
        itself = re.compile(rf"\b{name}(_bucket|_sum|_count)?\b")
        rest = "\n".join(line for line in page.splitlines() if not itself.search(line)) + "\n"
        findings = [(finding.object, finding.rule) for finding in check_page(spec, rest, "here")]
        assert findings == [(name, "metric-missing")], name


def test_another_objective_needs_no_other_server(digits_server: Running) -> None:
    assert ask(digits_server, DIGIT, "image/png") == 200
    assert digits_server.spec.slo is not None
    stricter = digits_server.spec.slo.model_copy(update={"p99_ms": 42.0})
    assert check_live(digits_server.spec.model_copy(update={"slo": stricter}), digits_server.pages) == []
