import os
import resource
import signal
import subprocess
from collections.abc import Iterator

import pytest

from marina.server.java.frontend import ModelStatus, WorkerStatus
from marina.server.watching.health import STALE_S, Health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(2, clock=clock)


def described(*workers: tuple[str, int, bool]) -> ModelStatus:
    return ModelStatus(True, tuple(WorkerStatus(*worker) for worker in workers))


def bring_up(health: Health, first: int, second: int) -> None:
    health.observe(described(("9000", first, True), ("9001", second, True)))
    assert health.unproven is not None
    health.prove(health.unproven)


def test_ready_needs_every_worker_and_an_answer(health: Health, processes: list[subprocess.Popen[bytes]]) -> None:
    assert health.missing() == ["TorchServe does not answer yet"]
    health.observe(described(("9000", processes[0].pid, True)))
    assert health.missing() == ["1 of 2 workers not started yet"]
    health.observe(described(("9000", processes[0].pid, True), ("9001", processes[1].pid, False)))
    assert health.missing() == ["worker 9001: loading"]
    health.observe(described(("9000", processes[0].pid, True), ("9001", processes[1].pid, True)))
    assert health.missing() == ["no inference has succeeded since the last worker started"]
    bring_up(health, processes[0].pid, processes[1].pid)
    assert health.ready


def test_a_stopped_worker_is_noticed_at_once_and_is_well_when_it_goes_on(
    health: Health, processes: list[subprocess.Popen[bytes]]
) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    assert health.ready
    processes[0].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, processes[0].pid, os.WSTOPPED | os.WNOWAIT)
    assert health.missing() == ["worker 9000: stopped by SIGSTOP, until it gets SIGCONT"]
    processes[0].send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, processes[0].pid, os.WCONTINUED | os.WNOWAIT)
    assert health.ready


def test_a_worker_that_cannot_be_looked_up_for_lack_of_files_has_not_died(
    health: Health, processes: list[subprocess.Popen[bytes]]
) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        missing = health.missing()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (missing, health.failing_for_s()) == ([], 0.0)


def test_a_stopped_torchserve_is_noticed_at_once_and_is_well_when_it_goes_on(
    health: Health, processes: list[subprocess.Popen[bytes]]
) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    with subprocess.Popen(["sleep", "60"]) as java:
        health.java_pid = java.pid
        assert health.ready
        java.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, java.pid, os.WSTOPPED | os.WNOWAIT)
        assert health.missing() == ["TorchServe: stopped by SIGSTOP, until it gets SIGCONT"]
        java.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, java.pid, os.WCONTINUED | os.WNOWAIT)
        assert health.ready
        java.kill()


def test_who_was_ready_once_may_have_requests_whatever_became_of_its_workers(
    health: Health, processes: list[subprocess.Popen[bytes]]
) -> None:
    assert not health.was_ready
    bring_up(health, processes[0].pid, processes[1].pid)
    processes[0].kill()
    processes[0].wait()
    assert not health.ready
    assert health.was_ready


def test_death_is_noticed_without_a_description(
    health: Health, processes: list[subprocess.Popen[bytes]], clock: Clock
) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    # Until somebody reaps it, it is a zombie, which counts as dead.
    processes[1].kill()
    while health.ready:
        pass
    clock.now += 7
    assert health.missing() == ["worker 9001: died 7 s ago, 0 restarts"]
    health.observe(described(("9000", processes[0].pid, True), ("9001", processes[1].pid, True)))
    assert not health.ready


def test_restarted_worker_must_answer_again(health: Health, processes: list[subprocess.Popen[bytes]]) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    before = health.generation
    processes[1].kill()
    processes[1].wait()
    health.observe(described(("9000", processes[0].pid, True), ("9001", processes[2].pid, True)))
    assert health.missing() == ["no inference has succeeded since the last worker started"]
    assert [worker.restarts for worker in health.workers()] == [0, 1]
    assert before is not None
    health.prove(before)
    assert not health.ready
    assert health.unproven is not None
    health.prove(health.unproven)
    assert health.ready


def test_worker_that_never_loads_is_failing_since_its_first_death(health: Health, clock: Clock) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    health.observe(described(("9000", gone.pid, False)))
    clock.now += 40
    again = subprocess.Popen(["true"])
    again.wait()
    health.observe(described(("9000", again.pid, False)))
    assert health.failing_for_s() == 40
    assert health.missing()[0] == "worker 9000: died 40 s ago, 1 restarts"


def test_recovered_worker_is_no_longer_failing(health: Health, processes: list[subprocess.Popen[bytes]]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    health.observe(described(("9000", gone.pid, False)))
    health.observe(described(("9000", processes[0].pid, True)))
    assert health.failing_for_s() == 0


def test_silence_of_a_busy_torchserve_is_no_reason_but_a_long_one_is(
    health: Health, processes: list[subprocess.Popen[bytes]], clock: Clock
) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    clock.now += STALE_S
    assert health.ready
    clock.now += 1
    assert health.missing() == ["TorchServe has not described its workers for 31 s"]


def test_taken_out_is_not_ready_until_taken_back(health: Health, processes: list[subprocess.Popen[bytes]]) -> None:
    bring_up(health, processes[0].pid, processes[1].pid)
    health.set_unready_reason("the only worker is being renewed")
    assert health.missing() == ["the only worker is being renewed"]
    health.set_unready_reason(None)
    assert health.ready
