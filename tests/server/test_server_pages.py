import os
import signal
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from specs import make_spec
from waiting import eventually

from marina.server.java.door import OpenCounts
from marina.server.java.frontend import Counters, NoAnswerError, read_counters
from marina.server.java.traffic import DurationHistogram, Traffic
from marina.server.pages.pages import json_response, metrics_response, serve_pages
from marina.server.watching import metrics
from marina.server.watching.exposition import family, histogram_family
from marina.server.watching.health import Health
from marina.server.watching.metrics import MetricsPage, ServerFacts

SPEC = make_spec({"name": "m"})


class FakeFrontend:
    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    def counters(self) -> Counters:
        self.asked += 1
        if self.silent:
            raise NoAnswerError
        return Counters(arrivals=self.asked)


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
def page(frontend: FakeFrontend) -> MetricsPage:
    workers: Any = SimpleNamespace(page=lambda: "")
    door: Any = SimpleNamespace(count=lambda: OpenCounts(inferences=frontend.asked))
    return MetricsPage(SPEC, frontend, door, Traffic(SPEC), Health(1), workers, ServerFacts())  # type: ignore[arg-type]


@pytest.fixture
def served() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = serve_pages("127.0.0.1", port, {"/ready": lambda: json_response(503, {"ready": False})})
    yield port
    server.shutdown()
    server.server_close()


def test_asked_often_the_page_is_rendered_once(page: MetricsPage, frontend: FakeFrontend, monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    texts = {page.text() for _ in range(50)}
    assert (len(texts), frontend.asked) == (1, 1)
    now[0] += metrics.PAGE_AGE_S + 0.01
    page.text()
    assert frontend.asked == 2
    assert 'marina_in_flight{model="m"} 2\n' in page.text()


def test_silent_torchserve_leaves_the_last_counts(page: MetricsPage, frontend: FakeFrontend, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "PAGE_AGE_S", -1)
    series = 'ts_inference_requests_total{model_name="m",model_version="1.0"}'
    assert f"{series} 1\n" in page.text()
    frontend.silent = True
    assert f"{series} 1\n" in page.text()


@pytest.mark.slow
def test_a_torchserve_that_hangs_keeps_nobody_waiting_and_the_page_says_so(page: MetricsPage, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "PAGE_AGE_S", -1)
    answers = threading.Event()

    def count() -> OpenCounts:
        assert answers.wait(120)
        return OpenCounts(connections=7)

    monkeypatch.setattr(page.door, "count", count)
    try:
        for _ in range(2):
            text = page.text()
            # If the page waited for TorchServe, this line would never be reached.
            assert not answers.is_set()
            assert 'marina_torchserve_answers{model="m"} 0\n' in text
            assert 'marina_connections{model="m"} 0\n' in text
    finally:
        answers.set()
    eventually(lambda: 'marina_torchserve_answers{model="m"} 1\n' in page.text())
    assert 'marina_connections{model="m"} 7\n' in page.text()


def test_a_torchserve_that_is_stopped_is_not_asked(page: MetricsPage, frontend: FakeFrontend, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "PAGE_AGE_S", -1)
    with subprocess.Popen(["sleep", "60"]) as java:
        page.health.java_pid = java.pid
        java.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, java.pid, os.WSTOPPED | os.WNOWAIT)
        assert 'marina_torchserve_answers{model="m"} 0\n' in page.text()
        assert frontend.asked == 0
        java.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, java.pid, os.WCONTINUED | os.WNOWAIT)
        assert 'marina_torchserve_answers{model="m"} 1\n' in page.text()
        java.kill()


def test_before_the_first_request_everything_is_there_as_zero(page: MetricsPage, frontend: FakeFrontend) -> None:
    frontend.silent = True
    text = page.text()
    assert 'ts_inference_requests_total{model_name="m",model_version="1.0"} 0\n' in text
    assert 'inference_request_duration_seconds_count{model="m",version="1.0",code="200"} 0\n' in text
    assert 'marina_ready{model="m"} 0\n' in text


def test_torchserves_counters_are_summed_over_versions_and_other_models_left_out() -> None:
    text = (
        'ts_inference_requests_total{model_name="m",model_version="default",hostname="h",} 5.0\n'
        'ts_inference_requests_total{model_name="m",model_version="1.0",hostname="h",} 2.0\n'
        'ts_inference_requests_total{model_name="other",model_version="default",hostname="h",} 9.0\n'
        'ts_inference_latency_microseconds{model_name="m",model_version="default",hostname="h",} 1500000.0\n'
        'ts_queue_latency_microseconds{model_name="m",model_version="default",hostname="h",} 2.5E5\n'
        'Requests2XX{Level="Host",Hostname="h",} 7.0\n'
    )
    assert read_counters(text, "m") == Counters(arrivals=7, latency_s=1.5, queue_s=0.25)
    assert read_counters("", "m") == Counters()


def test_labels_are_escaped_and_histograms_cumulative() -> None:
    assert family("a", "gauge", "b", [({"x": 'q"\\\n'}, 1.5)])[-1] == 'a{x="q\\"\\\\\\n"} 1.5'
    lines = histogram_family("h", "t", (0.1, 1.0), [({"code": 200}, DurationHistogram([2, 3, 4], 12.5))])
    assert lines[2:] == [
        'h_bucket{code="200",le="0.1"} 2',
        'h_bucket{code="200",le="1"} 5',
        'h_bucket{code="200",le="+Inf"} 9',
        'h_sum{code="200"} 12.5',
        'h_count{code="200"} 9',
    ]


def test_pages_have_their_status_and_unknown_ones_name_the_known(served: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as not_ready:
        urllib.request.urlopen(f"http://127.0.0.1:{served}/ready?verbose")
    assert (not_ready.value.code, not_ready.value.read()) == (503, b'{"ready": false}\n')
    with pytest.raises(urllib.error.HTTPError) as unknown:
        urllib.request.urlopen(f"http://127.0.0.1:{served}/health")
    assert unknown.value.code == 404
    assert b'"allowed": ["/ready"]' in unknown.value.read()


def test_clients_that_say_nothing_hold_nobody_up(served: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", served)) for _ in range(50)]
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{served}/ready", timeout=5)
    for client in silent:
        client.close()


def test_metrics_page_has_prometheus_content_type() -> None:
    assert metrics_response("").content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_a_client_that_hangs_up_early_is_no_news(served: int, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        hasty = socket.create_connection(("127.0.0.1", served))
        hasty.sendall(b"GET /re")
        # Without waiting: the kernel sends a reset.
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hasty.close()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{served}/ready", timeout=5)
    assert capsys.readouterr().err == ""
