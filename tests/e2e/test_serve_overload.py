import json
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import Start
from load import Load
from tiny import make_tiny
from waiting import ask, eventually, metric

from server import Exit, Running, running

pytestmark = pytest.mark.e2e

MINUTE_S = 60
WORKERS, SLEEP_S, QUEUE, HEAP_MB = 2, 0.05, 100, 128
CAPACITY = WORKERS / SLEEP_S


@pytest.fixture(scope="module")
def crash_looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # Begins before the overload and is looked at after it: the shortest retry window is over a minute.
    folder = tmp_path_factory.mktemp("crash")
    (folder / "fail").touch()
    spec, mar = make_tiny(folder, startup_timeout_s=1, retry_window_s=61)
    environment = {"TINY_FAIL_LOAD": str(folder / "fail")}
    with running(spec, mar=mar, log=folder / "server.log", environment=environment, wait=False) as server:
        yield server


@pytest.mark.usefixtures("crash_looping")
def test_three_times_the_capacity_for_a_minute(start_tiny: Start) -> None:
    server = start_tiny(workers=WORKERS, queue=QUEUE, java_heap_mb=HEAP_MB)
    ready: list[bool] = []
    memory: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            ready.append(server.readiness()[0])
            memory.append(
                (
                    metric(server, "marina_resident_memory_bytes", process="torchserve"),
                    metric(server, "marina_resident_memory_bytes", process="supervisor"),
                )
            )

    watcher = threading.Thread(target=watch)
    body = json.dumps({"sleep_s": SLEEP_S, "padding": "x" * 20_000}).encode()
    begin = time.monotonic()
    with Load(server.ports.inference, "/predictions/tiny", body, 3 * CAPACITY) as load:
        watcher.start()
        eventually(lambda: time.monotonic() - begin > MINUTE_S, within_s=MINUTE_S + 10)
        outcomes = load.finish()
    answered = ask(server, b"{}")
    stop.set()
    watcher.join()

    assert set(outcomes) == {"200", "503"}
    assert outcomes["503"] > len(load.sent) / 3
    assert {json.loads(one.refusal)["type"] for one in load.sent if one.refusal} == {"ServiceUnavailableException"}
    assert answered == 200
    assert all(ready)
    assert len(ready) > 60
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    eventually(lambda: metric(server, "marina_queued") == 0)
    # Heap, as much again outside of it, and Java itself; the supervisor keeps nothing of a request.
    assert max(java for java, _ in memory) < (2 * HEAP_MB + 200) * 1e6
    settled = [supervisor for _, supervisor in memory[len(memory) // 4 :]]
    assert max(settled) - settled[0] < 10e6
    assert metric(server, "ts_inference_requests_total") == len(load.sent) + 1


def test_worker_that_fails_past_the_retry_window_ends_the_server(crash_looping: Running) -> None:
    assert crash_looping.process.wait(120) == Exit.MODEL_FAILED
    assert "`serving.retry_window_s` is 61" in crash_looping.log.read_text()
