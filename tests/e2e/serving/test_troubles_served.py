"""The symptoms of docs/how-to/troubleshooting.md that only a running server shows."""

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import Start
from running import Running
from specs import ROOT
from test_serve_faults import java_pid, worker_pids
from troubles import shows
from waiting import ask, eventually, metric

from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e


def get(url: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def predict(server: Running, order: dict[str, object]) -> tuple[int, str]:
    url = f"{server.url}/predictions/{server.spec.name}"
    return get(url, json.dumps(order).encode(), Content_Type="application/json")


def test_requests_of_the_wrong_kind(digits_server: Running) -> None:
    url = f"{digits_server.url}/predictions/digits"
    command = ["curl", "-s", "--data-binary", f"@{ROOT / 'config/examples/digits/samples/3.png'}", url]
    shows("form", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    status, body = get(f"{digits_server.url}/predictions/digit", b"{}", Content_Type="application/json")
    assert status == 404
    shows("unknown-model", body)
    assert get(f"{digits_server.url}/metrics")[0] == 404
    assert get(f"{digits_server.pages}/metrics")[0] == 200
    shows("no-metrics", "")
    # The handler refuses what is over its own limit; the door does not read what is far over it.
    for size, allowed in ((11_000_000, 10_000_000), (30_000_000, 25_000_000)):
        status, body = get(url, bytes(size), Content_Type="image/jpeg")
        assert status == 413
        assert str(allowed) in body
        shows("too-large", body)


def test_without_the_page_to_try_the_model(start_tiny: Start) -> None:
    status, body = get(f"{start_tiny().url}/docs")
    assert status == 404
    shows("no-docs", body)


def test_a_server_that_is_loading(start_tiny: Start) -> None:
    server = start_tiny(wait=False, environment={"TINY_LOAD_S": "3"})
    status, body = eventually(lambda: (answer := server.get("/ready"))[0] and answer)
    assert status == 503
    shows("not-ready", body)


def test_a_worker_that_cannot_load(start_tiny: Start, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    server = start_tiny(wait=False, environment={"TINY_FAIL_LOAD": str(tmp_path / "fail")})
    eventually(lambda: server.get("/metrics")[0] and metric(server, "marina_worker_restarts_total"))
    shows("crash-loop", server.get("/ready")[1])


def test_java_that_was_killed(start_tiny: Start) -> None:
    server = start_tiny()
    os.kill(java_pid(server), signal.SIGKILL)
    assert server.process.wait(120) == Exit.JAVA_DIED
    shows("java-ended", server.log.read_text())


def test_a_queue_that_is_full(start_tiny: Start) -> None:
    server, seen = start_tiny(queue=1), threading.Event()

    def keep_busy() -> None:
        while not seen.is_set():
            predict(server, {"sleep_s": 1})

    # One is answered, one waits, and the third takes the place of the one that waits as soon as there is one.
    threads = [threading.Thread(target=keep_busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        status, body = eventually(lambda: (answer := predict(server, {}))[0] == 503 and answer)
    finally:
        seen.set()
        for thread in threads:
            thread.join()
    assert status == 503
    shows("shed", body)


def test_a_worker_that_was_killed(start_tiny: Start) -> None:
    server = start_tiny()
    answers: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: answers.append(predict(server, {"hang": True})))
    thread.start()
    eventually(lambda: metric(server, "marina_in_flight") == 1)
    os.kill(worker_pids(server)[0], signal.SIGKILL)
    shows("worker-died", eventually(lambda: "died" in (body := server.get("/ready")[1]) and body))
    thread.join()
    assert answers[0][0] in (500, 507)


def test_a_batch_that_takes_too_long(start_tiny: Start) -> None:
    status, body = predict(start_tiny(response_timeout_s=1), {"hang": True})
    assert status == 500
    shows("too-slow", body)


def test_a_request_that_outlasts_the_drain(start_tiny: Start) -> None:
    server = start_tiny(drain_timeout_s=0.5, response_timeout_s=300)
    threading.Thread(target=ask, args=(server, b'{"hang": true}'), daemon=True).start()
    eventually(lambda: metric(server, "marina_in_flight") == 1)
    assert server.stop() == Exit.CUT
    shows("cut", server.log.read_text())
