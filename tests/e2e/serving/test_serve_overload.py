import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import Start
from load import Load
from running import Running, running
from tiny import make_tiny
from waiting import ask, eventually, metric, samples, scan, total

from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e
SHED = "overloaded: the queue is full, or no worker is ready"

OVERLOAD_S, WINDOW_S = 30, 3
QUEUE, HEAP_MB = 50, 128
# Some 100 kB each and 30 ms of a worker: a client beside two workers can send far more than they can answer.
BODY, TYPE, START_RPS = scan(1024), "image/png", 300


@pytest.fixture(scope="module")
def crash_looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # Begins before the overload and is looked at after it: the shortest retry window is over a minute.
    folder = tmp_path_factory.mktemp("crash")
    (folder / "fail").touch()
    spec, mar = make_tiny(folder, startup_timeout_s=1)
    environment = {"TINY_FAIL_LOAD": str(folder / "fail")}
    with running(spec, mar=mar, log=folder / "server.log", environment=environment, wait=False) as server:
        yield server


@dataclass(frozen=True)
class Seen:
    """What `/ready` and the metrics said at one moment."""

    missing: list[str]
    java: float
    supervisor: float
    workers: float


class Watch(threading.Thread):
    """Asks a server how it is until `finish`."""

    def __init__(self, server: Running) -> None:
        super().__init__(daemon=True)
        self._server, self._ended, self.seen = server, threading.Event(), list[Seen]()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            ready, why = self._server.readiness()
            page = samples(self._server)
            self.seen.append(
                Seen(
                    [] if ready else why.get("missing", ["no answer"]),
                    total(page, "marina_resident_memory_bytes", process="torchserve"),
                    total(page, "marina_resident_memory_bytes", process="supervisor"),
                    total(page, "marina_worker_resident_memory_bytes"),
                )
            )

    def finish(self) -> list[Seen]:
        self._ended.set()
        self.join()
        return self.seen


def keep_overloaded(load: Load, watch: Watch, *, for_s: float) -> None:
    """Sends three times what is answered, whatever else the machine has to do: its capacity is no constant. A slow
    machine goes on until it was looked at once for every second."""
    ends = time.monotonic() + for_s
    while (now := time.monotonic()) < ends or (len(watch.seen) < for_s and watch.is_alive()):
        lately = sum(sent.outcome == "200" and sent.ended > now - WINDOW_S for sent in load.sent)
        load.rate = max(load.rate / 2, 3 * lately / WINDOW_S)
        time.sleep(0.5)


@pytest.mark.usefixtures("crash_looping")
def test_three_times_the_capacity_for_half_a_minute(start_digits: Start) -> None:
    server = start_digits(queue=QUEUE, java_heap_mb=HEAP_MB)
    watch = Watch(server)
    with Load(server.ports.inference, "/predictions/digits", BODY, START_RPS, TYPE) as load:
        # Not yet: the first refusal shows that there is more than it can answer.
        eventually(lambda: any(sent.outcome == "503" for sent in load.sent))
        watch.start()
        keep_overloaded(load, watch, for_s=OVERLOAD_S)
        outcomes = load.finish()
    answered = ask(server, BODY, TYPE)
    seen = watch.finish()

    assert set(outcomes) == {"200", "503"}
    # As long as it was looked at there was too much to answer; how much too much, the machine decides.
    assert outcomes["503"] > OVERLOAD_S * QUEUE / 10
    assert {json.loads(sent.refusal)["error"] for sent in load.sent if sent.refusal} == {SHED}
    assert answered == 200
    assert len(seen) >= OVERLOAD_S
    assert [each.missing for each in seen if each.missing] == []
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    eventually(lambda: metric(server, "marina_queued") == 0)
    eventually(lambda: metric(server, "ts_inference_requests_total") == len(load.sent) + 1)
    assert metric(server, "marina_worker_restarts_total") == 0
    # Heap, as much again outside of it, and Java itself. The others keep nothing of a request.
    assert max(each.java for each in seen) < (2 * HEAP_MB + 200) * 1e6
    settled = seen[len(seen) // 4 :]
    assert max(each.supervisor for each in settled) - settled[0].supervisor < 5e6
    assert max(each.workers for each in settled) - settled[0].workers < 25e6


def test_worker_that_fails_past_the_retry_window_ends_the_server(crash_looping: Running) -> None:
    assert crash_looping.process.wait(120) == Exit.MODEL_FAILED
    assert " s, longer than 61 s" in crash_looping.log.read_text()
