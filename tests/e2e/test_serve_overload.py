import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import Start
from load import Load
from tiny import make_tiny
from waiting import ask, eventually, metric, scan

from server import Exit, Running, running

pytestmark = pytest.mark.e2e

MINUTE_S = 60
QUEUE, HEAP_MB = 50, 128
# Some 100 kB each and 30 ms of a worker: what two cores can decode is a third of what a client can send beside them.
BODY, TYPE = scan(1024), "image/png"


@pytest.fixture(scope="module")
def crash_looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # Begins before the overload and is looked at after it: the shortest retry window is over a minute.
    folder = tmp_path_factory.mktemp("crash")
    (folder / "fail").touch()
    spec, mar = make_tiny(folder, startup_timeout_s=1, retry_window_s=61)
    environment = {"TINY_FAIL_LOAD": str(folder / "fail")}
    with running(spec, mar=mar, log=folder / "server.log", environment=environment, wait=False) as server:
        yield server


@dataclass(frozen=True)
class Seen:
    """What `/ready` and the metrics said at one moment."""

    ready: bool
    java: float
    supervisor: float
    workers: float


class Watch(threading.Thread):
    """Asks a server how it is until `finish`."""

    def __init__(self, server: Running) -> None:
        super().__init__(daemon=True)
        self._server, self._ended, self._seen = server, threading.Event(), list[Seen]()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            ready, _ = self._server.readiness()
            memory = (
                metric(self._server, "marina_resident_memory_bytes", process="torchserve"),
                metric(self._server, "marina_resident_memory_bytes", process="supervisor"),
                metric(self._server, "marina_worker_resident_memory_bytes"),
            )
            self._seen.append(Seen(ready, *memory))

    def finish(self) -> list[Seen]:
        self._ended.set()
        self.join()
        return self._seen


def capacity_rps(server: Running) -> float:
    """What it answers of far more than it can."""
    with Load(server.ports.inference, "/predictions/digits", BODY, 400, TYPE) as load:
        eventually(lambda: len(load.sent) >= 1200)
        answered = load.finish()["200"]
    return answered / (max(one.ended for one in load.sent) - load.sent[0].began)


@pytest.mark.usefixtures("crash_looping")
def test_three_times_the_capacity_for_a_minute(start_digits: Start) -> None:
    server = start_digits(queue=QUEUE, java_heap_mb=HEAP_MB)
    rate = 3 * capacity_rps(server)
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    before = metric(server, "ts_inference_requests_total")
    watch, begin = Watch(server), time.monotonic()
    with Load(server.ports.inference, "/predictions/digits", BODY, rate, TYPE) as load:
        watch.start()
        eventually(lambda: time.monotonic() - begin > MINUTE_S, within_s=MINUTE_S + 10)
        outcomes = load.finish()
    answered = ask(server, BODY, TYPE)
    seen = watch.finish()

    settled = seen[len(seen) // 4 :]
    print(outcomes, rate, len(seen), max(o.java for o in seen)/1e6, settled[0], settled[-1], max(o.workers for o in settled)/1e6, max(one.supervisor for one in settled) - settled[0].supervisor, load.latency_s(.5), load.latency_s(.99))
    assert set(outcomes) == {"200", "503"}
    # Three times what it answers leaves two refused for one answered; more than one is still an overload.
    assert outcomes["503"] > outcomes["200"]
    assert {json.loads(one.refusal)["type"] for one in load.sent if one.refusal} == {"ServiceUnavailableException"}
    assert answered == 200
    assert len(seen) > MINUTE_S
    assert all(one.ready for one in seen)
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    eventually(lambda: metric(server, "marina_queued") == 0)
    assert metric(server, "ts_inference_requests_total") - before == len(load.sent) + 1
    assert metric(server, "marina_worker_restarts_total") == 0
    # Heap, as much again outside of it, and Java itself. The others keep nothing of a request.
    assert max(one.java for one in seen) < (2 * HEAP_MB + 200) * 1e6
    settled = seen[len(seen) // 4 :]
    assert max(one.supervisor for one in settled) - settled[0].supervisor < 10e6
    assert max(one.workers for one in settled) - settled[0].workers < 50e6


def test_worker_that_fails_past_the_retry_window_ends_the_server(crash_looping: Running) -> None:
    assert crash_looping.process.wait(120) == Exit.MODEL_FAILED
    assert "`serving.retry_window_s` is 61" in crash_looping.log.read_text()
