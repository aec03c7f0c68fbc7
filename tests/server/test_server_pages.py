"""The supervisor's pages, and what `/metrics` shows."""

import os
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from specs import make_spec
from waiting import eventually

from marina.config.latency import EDGES_S
from marina.server.java.door import OpenCounts
from marina.server.java.frontend import Counters, NoAnswerError, read_counters
from marina.server.java.traffic import DurationHistogram, Traffic
from marina.server.watching import metrics, pages
from marina.server.watching.health import Health
from marina.server.watching.metrics import MetricsPage, ServerFacts, durations
from marina.server.watching.pages import PageResponse, json_response, serve_pages

SPEC = make_spec({"name": "m"})


class FakeFrontend:
    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    def metrics(self) -> str:
        self.asked += 1
        if self.silent:
            raise NoAnswerError
        return ""

    def counters(self, _page: str) -> Counters:
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
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(pages, "CONNECTIONS", 5)
    routes = {
        "/ready": lambda: json_response(503, {"ready": False}),
        # More than the kernel keeps of an answer that its client does not read.
        "/large": lambda: PageResponse(200, bytes(20_000_000)),
    }
    server = serve_pages("127.0.0.1", 0, routes)
    yield server.server_port
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
    assert 'marina_in_flight{model="m"} 2.0\n' in page.text()


def test_silent_torchserve_leaves_the_last_counts(page: MetricsPage, frontend: FakeFrontend, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "PAGE_AGE_S", -1)
    line = 'ts_inference_requests_total{model_name="m",model_version="1.0"} 1.0\n'
    assert line in page.text()
    frontend.silent = True
    assert line in page.text()


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
            assert 'marina_torchserve_answers{model="m"} 0.0\n' in text
            assert 'marina_connections{model="m"} 0.0\n' in text
    finally:
        answers.set()
    eventually(lambda: 'marina_torchserve_answers{model="m"} 1.0\n' in page.text())
    assert 'marina_connections{model="m"} 7.0\n' in page.text()


def test_a_torchserve_that_is_stopped_is_not_asked(page: MetricsPage, frontend: FakeFrontend, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "PAGE_AGE_S", -1)
    with subprocess.Popen(["sleep", "60"]) as java:
        page.health.java_pid = java.pid
        java.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, java.pid, os.WSTOPPED | os.WNOWAIT)
        assert 'marina_torchserve_answers{model="m"} 0.0\n' in page.text()
        assert frontend.asked == 0
        java.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, java.pid, os.WCONTINUED | os.WNOWAIT)
        assert 'marina_torchserve_answers{model="m"} 1.0\n' in page.text()
        java.kill()


def test_before_the_first_request_everything_is_there_as_zero(page: MetricsPage, frontend: FakeFrontend) -> None:
    frontend.silent = True
    text = page.text()
    assert 'ts_inference_requests_total{model_name="m",model_version="1.0"} 0.0\n' in text
    assert 'inference_request_duration_seconds_count{code="200",model="m",version="1.0"} 0.0\n' in text
    assert 'marina_ready{model="m"} 0.0\n' in text


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


def test_the_histogram_is_cumulative() -> None:
    counts = [2, 3, *[0] * (len(EDGES_S) - 2), 4]
    family = durations([({"code": 200}, DurationHistogram(counts, 12.5))])
    lines = generate_latest(SimpleNamespace(collect=lambda: [family])).decode().splitlines()  # type: ignore[arg-type]
    name = "inference_request_duration_seconds"
    assert lines[1] == f"# TYPE {name} histogram"
    assert lines[2:4] == [f'{name}_bucket{{code="200",le="0.001"}} 2.0', f'{name}_bucket{{code="200",le="0.002"}} 5.0']
    assert lines[-4:] == [
        f'{name}_bucket{{code="200",le="600.0"}} 5.0',
        f'{name}_bucket{{code="200",le="+Inf"}} 9.0',
        f'{name}_count{{code="200"}} 9.0',
        f'{name}_sum{{code="200"}} 12.5',
    ]


def ask(port: int, path: str = "/ready") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as err:
        return err.code, err.read()


def test_pages_have_their_status_and_unknown_ones_name_the_known(served: int) -> None:
    assert ask(served, "/ready?verbose") == (503, b'{"ready": false}\n')
    code, body = ask(served, "/health")
    assert code == 404
    assert b'"allowed": ["/large", "/ready"]' in body


def test_a_head_has_no_body(served: int) -> None:
    with socket.create_connection(("127.0.0.1", served), timeout=5) as client:
        client.sendall(b"HEAD /ready HTTP/1.1\r\n\r\n")
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert b" 503 " in head
    assert b"Content-Length: 17" in head
    assert body == b""


def test_silent_clients_and_those_that_read_nothing_hold_nobody_up_and_no_threads(served: int) -> None:
    before, held = threading.active_count(), []
    for number in range(40):
        client = socket.create_connection(("127.0.0.1", served), timeout=30)
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n" if number % 2 else b"GET /re")
        held.append(client)
    assert [ask(served)[0] for _ in range(5)] == [503] * 5
    eventually(lambda: threading.active_count() <= before + pages.CONNECTIONS + 1)
    # The oldest had to go.
    with suppress(ConnectionResetError):
        assert held[0].recv(1) == b""
    for client in held:
        client.close()


def test_a_client_that_hangs_up_early_is_no_news(served: int, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        hasty = socket.create_connection(("127.0.0.1", served))
        hasty.sendall(b"GET /re")
        # Without waiting: the kernel sends a reset.
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hasty.close()
    assert ask(served)[0] == 503
    assert capsys.readouterr().err == ""


def test_a_page_that_takes_its_time_holds_up_no_other() -> None:
    release = threading.Event()

    def slow() -> PageResponse:
        release.wait(60)
        return json_response(200, {})

    server = serve_pages("127.0.0.1", 0, {"/metrics": slow, "/ready": lambda: json_response(200, {})})
    waiting = threading.Thread(target=ask, args=(server.server_port, "/metrics"))
    waiting.start()
    try:
        began = time.monotonic()
        assert ask(server.server_port)[0] == 200
        assert time.monotonic() - began < 1
        assert waiting.is_alive()
    finally:
        release.set()
        waiting.join()
        server.shutdown()
        server.server_close()
