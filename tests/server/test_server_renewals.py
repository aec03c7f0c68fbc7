import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marina.config.sections import Serving
from marina.server.java.frontend import ModelStatus, WorkerStatus
from marina.server.watching.health import Health
from marina.server.watching.renewals import Renewals

SERVING = Serving(max_worker_memory_mb=1, response_timeout_s=10, startup_timeout_s=60)


@dataclass
class Pod:
    """Renewals of workers that only sleep. The test sets their size and plays their part."""

    renewals: Renewals
    health: Health
    directory: Path
    workers: list[subprocess.Popen[bytes]]
    memory: dict[int, int]
    said: list[str]
    nudges: list[int]
    now: float = 0.0

    def look(self, seconds: float = 1) -> list[str]:
        """Lets time pass and the renewals go on once; returns the names of the files in its directory."""
        self.now += seconds
        self.renewals.step()
        return [file.name for file in self.directory.iterdir()]


@pytest.fixture
def make_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Pod]]:
    pods = []

    def make(count: int) -> Pod:
        workers = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
        health = Health(count)
        health.observe(ModelStatus(True, tuple(WorkerStatus(str(worker.pid), worker.pid, True) for worker in workers)))
        health.prove(health.generation or frozenset())
        memory, said, nudges = {worker.pid: 2_000_000 for worker in workers}, [], []
        monkeypatch.setattr("marina.server.watching.renewals.resident_bytes", memory.__getitem__)
        renewals = Renewals(
            SERVING,
            tmp_path,
            health,
            request_inference=lambda: nudges.append(1),
            say=said.append,
            clock=lambda: pod.now,
        )
        pod = Pod(renewals, health, tmp_path, workers, memory, said, nudges)
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        for worker in pod.workers:
            worker.kill()
            worker.wait()


def test_one_worker_is_renewed_at_a_time(make_pod: Callable[[int], Pod]) -> None:
    pod = make_pod(2)
    (first,) = pod.look()
    assert pod.look() == [first]
    assert pod.nudges
    (pod.directory / first).rename(pod.directory / f"{first}.busy")
    assert pod.look() == [f"{first}.busy"]
    (pod.directory / f"{first}.busy").unlink()
    pod.memory[int(first)] = 500_000
    assert pod.look() == []
    assert pod.renewals.renewed == 1
    (second,) = pod.look()
    assert second != first
    for worker in pod.workers:
        worker.kill()
        worker.wait()
    assert pod.look() == []
    assert (pod.renewals.renewed, pod.renewals.failed) == (1, 0)


def test_worker_that_never_takes_it_up_is_left_as_it_is_with_a_warning(make_pod: Callable[[int], Pod]) -> None:
    pod = make_pod(2)
    (first,) = pod.look()
    assert pod.look(14) == [first]
    assert pod.renewals.failed == 0
    assert pod.look(1) == []
    assert pod.renewals.failed == 1
    assert pod.said[-1].startswith(f"warning: worker {first} did not renew itself within 15 s")
    assert pod.health.ready
    # Now the other worker is asked, and the first one never again.
    (second,) = pod.look()
    assert second != first
    assert pod.look(15) == []
    assert [pod.look() for _ in range(3)] == [[], [], []]
    assert pod.renewals.failed == 2


def test_worker_that_never_finishes_loading_is_ended_with_a_warning(make_pod: Callable[[int], Pod]) -> None:
    pod = make_pod(1)
    (name,) = pod.look()
    (pod.directory / name).rename(pod.directory / f"{name}.busy")
    pod.look()
    assert pod.health.missing() == ["the only worker is being renewed"]
    assert pod.look(59) == [f"{name}.busy"]
    assert pod.renewals.failed == 0
    pod.look(1)
    assert pod.workers[0].wait(10) == -signal.SIGKILL
    assert pod.renewals.failed == 1
    assert pod.said[-1].startswith(f"warning: worker {name} has not loaded the model again after 60 s")
    assert pod.look() == []
    assert "being renewed" not in str(pod.health.missing())
