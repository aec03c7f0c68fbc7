import http.client
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Start, served_digits
from load import Load
from tiny import make_tiny
from waiting import DIGIT, ask, eventually

from config.spec import Spec
from server import Exit, running

pytestmark = pytest.mark.e2e

# Most with the tiny model, whose server starts in two seconds.
ROUNDS = [("digits", False), ("digits", True), *[("tiny", number % 4 == 0) for number in range(18)]]


def stop_under_load(spec: Spec, mar: Path, log: Path, *, keep: bool) -> tuple[int, Load, str]:
    body, content_type = (DIGIT, "image/png") if spec.name == "digits" else (b'{"sleep_s": 0.01}', "application/json")
    with running(spec, mar=mar, log=log) as server:
        load = Load(server.ports.inference, f"/predictions/{spec.name}", body, 60, content_type, keep=keep)
        with load:
            eventually(lambda: len(load.sent) > 30)
            code = server.stop()
            eventually(lambda: load.sent[-1].outcome == "refused")
        return code, load, server.tail()


def test_sigterm_under_load_loses_nothing_twenty_times(digits_mar: Path, tmp_path: Path) -> None:
    changes = {"drain_propagation_s": 0.5, "access_log": "errors"}
    packages = {"digits": (served_digits(**changes), digits_mar), "tiny": make_tiny(tmp_path, workers=2, **changes)}
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(stop_under_load, *packages[name], tmp_path / f"{number}.log", keep=keep)
            for number, (name, keep) in enumerate(ROUNDS)
        ]
        for code, load, told in (run.result() for run in runs):
            # TorchServe accepts in order: what began before its last answered connection had reached it. What the
            # kernel took later and TorchServe had not accepted when it closed is reset, which nobody can prevent.
            fresh = [one for one in load.sent if one.connected and not one.kept]
            accepted = max(one.began for one in fresh if one.outcome == "200")
            due = [one for one in load.sent if one.connected and one.began <= accepted]
            assert [one for one in due if one.outcome != "200"] == []
            assert len(due) > 30
            assert {one.outcome for one in load.sent if not one.connected} == {"refused"}
            assert code == Exit.DRAINED, told


def test_stopping_right_after_ready_sees_that_nothing_is_open(start_tiny: Start) -> None:
    server = start_tiny(drain_propagation_s=0)
    kept = http.client.HTTPConnection("127.0.0.1", server.ports.inference)
    kept.request("POST", "/predictions/tiny", b"{}")
    assert kept.getresponse().read()
    # Before anything has asked TorchServe for its counters, and with a connection that carries nothing.
    assert server.stop() == Exit.DRAINED
    kept.close()


def test_request_in_flight_is_answered_although_the_listener_is_closed(start_tiny: Start) -> None:
    server = start_tiny()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, server, b'{"sleep_s": 3}')
        eventually(lambda: 'marina_in_flight{model="tiny"} 1' in server.get("/metrics")[1])
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: ask(server, b"{}") == 0)
        assert server.readiness()[1]["state"] == "draining"
        assert slow.result() == 200
    assert server.process.wait(30) == Exit.DRAINED


def test_not_ready_at_once_and_serving_on_while_load_balancers_learn(start_tiny: Start) -> None:
    server = start_tiny(drain_propagation_s=2)
    with Load(server.ports.inference, "/predictions/tiny", b"{}", 50) as load:
        eventually(lambda: len(load.sent) > 20)
        stopped = time.monotonic()
        server.process.terminate()
        missing = eventually(lambda: server.readiness()[1].get("missing"))
        assert server.get("/live")[0] == 200
        assert server.process.wait(30) == Exit.DRAINED
    assert missing == ["the server is stopping"]
    assert max(one.began for one in load.sent if one.outcome == "200") - stopped > 1.9


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
    assert server.process.wait(30) == Exit.DRAINED
    assert "SIGTERM: stopped before it was ready" in server.log.read_text()
