import http.client
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Start
from load import Load
from running import running
from tiny import make_tiny
from tools import skip_unless_required
from waiting import DIGIT, ask, eventually, metric, worker_pids

from marina.config.spec import Spec
from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e

# Half of a worker's time at this rate, so that every stop finds requests in the middle of their work; and as long as a
# picture's.
BODY, RATE = b'{"sleep_s": 0.01}'.ljust(30_000), 50


def stop_under_load(spec: Spec, mar: Path, log: Path, *, keep: bool) -> tuple[int, Load, str]:
    with running(spec, mar=mar, log=log) as server:
        load = Load(server.ports.inference, "/predictions/tiny", BODY, RATE, keep=keep)
        with load:
            eventually(lambda: len(load.sent) > 30)
            code = server.stop()
            eventually(lambda: load.sent[-1].outcome == "refused")
        return code, load, log.read_text()


def test_sigterm_under_load_loses_nothing_time_after_time(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path / "tiny", drain_propagation_s=0.5, access_log="errors")
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(stop_under_load, spec, mar, tmp_path / f"{number}.log", keep=number % 4 == 0)
            for number in range(8)
        ]
        for code, load, told in (run.result() for run in runs):
            if "may reset connections" in told:
                skip_unless_required(told)
            closed = min(request.began for request in load.sent if request.outcome == "refused")
            # On a new connection everything that was sent; on a kept one what was sent before the listener closed.
            due = [sent for sent in load.sent if sent.connected and (not sent.kept or sent.began < closed)]
            assert [request for request in due if request.outcome != "200"] == []
            assert len(due) > 30
            assert {request.outcome for request in load.sent if not request.connected} == {"refused"}
            assert code == Exit.DRAINED, told


def test_stopping_right_after_ready_sees_that_nothing_is_open(start_tiny: Start) -> None:
    server = start_tiny(drain_propagation_s=0)
    kept = http.client.HTTPConnection("127.0.0.1", server.ports.inference)
    kept.request("POST", "/predictions/tiny", b"{}")
    assert kept.getresponse().read()
    # Before anything has asked TorchServe for its counters, and with a connection that carries nothing.
    assert server.stop() == Exit.DRAINED
    kept.close()


def test_request_in_flight_is_answered_although_the_listener_is_closed(start_digits: Start) -> None:
    server = start_digits(workers=1)
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, server, DIGIT, "image/png")
        eventually(lambda: metric(server, "marina_in_flight") == 1)
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: "no new connections" in server.log.read_text())
        assert ask(server, DIGIT, "image/png") == 0
        assert server.readiness()[1]["state"] == "draining"
        os.kill(worker, signal.SIGCONT)
        assert slow.result() == 200
    assert server.process.wait(120) == Exit.DRAINED


def test_not_ready_at_once_and_serving_on_while_load_balancers_learn(start_tiny: Start) -> None:
    server = start_tiny(drain_propagation_s=2)
    with Load(server.ports.inference, "/predictions/tiny", b"{}", 50) as load:
        eventually(lambda: len(load.sent) > 20)
        stopped = time.monotonic()
        server.process.terminate()
        missing = eventually(lambda: server.readiness()[1].get("missing"))
        assert server.get("/live")[0] == 200
        assert server.process.wait(120) == Exit.DRAINED
    assert missing == ["the server is stopping"]
    assert max(request.began for request in load.sent if request.outcome == "200") - stopped > 1.9


def test_second_signal_stops_at_once(start_tiny: Start) -> None:
    server = start_tiny(drain_timeout_s=300, response_timeout_s=300)
    threading.Thread(target=ask, args=(server, b'{"sleep_s": 250}'), daemon=True).start()
    eventually(lambda: 'marina_in_flight{model="tiny"} 1' in server.get("/metrics")[1])
    server.process.terminate()
    eventually(lambda: "no new connections" in server.log.read_text())
    server.process.terminate()
    assert server.process.wait(60) == Exit.CUT
    assert "with 1 requests open: a second signal" in server.log.read_text()


def test_drain_bound_cuts_what_takes_longer(start_tiny: Start) -> None:
    server = start_tiny(drain_timeout_s=1)
    threading.Thread(target=ask, args=(server, b'{"sleep_s": 25}'), daemon=True).start()
    eventually(lambda: 'marina_in_flight{model="tiny"} 1' in server.get("/metrics")[1])
    begin = time.monotonic()
    assert server.stop() == Exit.CUT
    assert time.monotonic() - begin < 20
    assert "with 1 requests open: `serving.drain_timeout_s` of 1 s was exceeded" in server.log.read_text()


def test_stopping_before_ready_ends_without_a_drain(start_tiny: Start) -> None:
    server = start_tiny(wait=False, environment={"TINY_LOAD_S": "60"}, drain_propagation_s=60)
    eventually(lambda: server.readiness()[1])
    server.process.terminate()
    assert server.process.wait(120) == Exit.DRAINED
    assert "SIGTERM: stopped before it was ready" in server.log.read_text()
