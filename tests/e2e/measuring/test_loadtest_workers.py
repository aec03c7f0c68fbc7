"""A load that several processes send together: those of one machine, and those that find each other as pods do."""

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from loadtest_rig import running_server
from specs import ROOT
from waiting import eventually

from marina.config.errors import MarinaError
from marina.config.measured import Objective
from marina.loadtest.judging import judge
from marina.loadtest.measuring import Measurement, this_machine
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import (
    LoadPlan,
    LoadRequest,
    generate,
    read_record_lines,
    read_second_line,
    running_generator,
)

pytestmark = pytest.mark.e2e
PARTS = 3
OBJECTIVE = Objective(p99_ms=2000, error_rate=0.01, throughput_rps=None)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as url:
        yield url


def plan_of(url: str, *, rate: float = 90, duration_s: float = 2, parts: int = PARTS) -> LoadPlan:
    body = base64.b64encode(b"x" * 100)
    request = LoadRequest(url=f"{url}/predictions/digits", body=body, content_type="image/png")
    schedule = Schedule(arrivals="constant", rate=rate, warmup_s=1, duration_s=duration_s)
    return LoadPlan(request=request, schedule=schedule, parts=parts, timeout_s=10, limit_ms=2000)


def start_pods(folder: Path, plan: LoadPlan) -> "dict[int, subprocess.Popen[str]]":
    """The others before the one that leads, which nobody orders in a cluster."""
    file = folder / "plan.json"
    file.write_text(plan.model_dump_json(), encoding="utf-8")
    with socket.create_server(("", 0)) as listener:
        port = str(listener.getsockname()[1])
    # Not the leader's own address, as from another machine.
    leader = ["--leader", "127.0.0.2", "--port", port, "--part"]
    words = [sys.executable, "-m", "marina.loadtest.sending.pod", str(file), *leader]
    return {
        part: subprocess.Popen(
            [*words, str(part)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        for part in reversed(range(plan.parts))
    }


def wait_for(url: str, more: int) -> None:
    """Until the server was asked for so many predictions more."""
    before = seen(url)
    eventually(lambda: seen(url) >= before + more, within_s=90)


def seen(url: str) -> int:
    return int(urllib.request.urlopen(f"{url}/seen", timeout=30).read())


def workers_of(pid: int) -> list[psutil.Process]:
    """The worker processes under a process of ours."""
    return [child for child in psutil.Process(pid).children(recursive=True) if is_worker(child)]


def is_worker(process: psutil.Process) -> bool:
    try:
        return "marina.loadtest.sending.worker" in process.cmdline()
    except psutil.Error:
        return False


def apart_ms(measured: Measurement) -> float:
    return max(measured.starts_ms) - min(measured.starts_ms) + measured.clocks_ms


@pytest.fixture(scope="module")
def log(url: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the leader of three pods wrote."""
    pods = start_pods(tmp_path_factory.mktemp("pods"), plan_of(url))
    written = {part: pod.communicate(timeout=120)[0] for part, pod in pods.items()}
    assert [pod.returncode for pod in pods.values()] == [0] * PARTS
    assert written[1] == written[2] == ""
    return written[0].splitlines()


def test_the_pods_send_the_schedule_together(log: list[str]) -> None:
    measured, machine = read_record_lines(log)
    assert machine == this_machine()
    assert (measured.planned, measured.sent, measured.good, measured.warmup) == (180, 180, 180, 90)
    assert len(measured.generators) == len(measured.starts_ms) == PARTS
    assert measured.lost_processes == ()


def test_they_begin_together_or_the_verdict_says_that_they_did_not(log: list[str]) -> None:
    measured, _ = read_record_lines(log)
    # One machine has one clock, so how far theirs seem apart is how long a message takes.
    assert measured.clocks_ms > 0
    named = [reason.id for reason in judge(measured, OBJECTIVE).reasons]
    assert apart_ms(measured) <= OBJECTIVE.late_ms or "processes-apart" in named


def test_every_second_is_written_while_it_runs(log: list[str]) -> None:
    seconds = [second for second in map(read_second_line, log) if second]
    assert [second[0] for second in seconds][:2] == [1, 2]
    assert sum(second[1].answered for second in seconds) <= 270
    assert all(len(second[2]) == PARTS for second in seconds)


def test_no_line_is_longer_than_a_container_log_keeps_whole(log: list[str]) -> None:
    assert max(map(len, log)) < 16 * 1024


def test_processes_of_one_machine_send_the_schedule_together(url: str) -> None:
    seconds: list[int] = []
    measured = generate(plan_of(url), lambda number, *_: seconds.append(number))
    assert (measured.planned, measured.sent, measured.good, measured.warmup) == (180, 180, 180, 90)
    assert len(measured.generators) == PARTS
    assert seconds[:2] == [1, 2]


def test_a_clock_that_jumps_loses_no_worker(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An hour ahead each time that somebody looks at it.
    clock = "import itertools, sys, time\nhours = itertools.count()\ntrue = time.time\n"
    jumping = "if 'marina.loadtest.sending.worker' in sys.orig_argv: time.time = lambda: true() + 3600 * next(hours)\n"
    (tmp_path / "sitecustomize.py").write_text(clock + jumping)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured = generate(plan_of(url, duration_s=4))
    assert (measured.lost_processes, measured.good) == ((), 360)


def test_a_pod_that_dies_makes_the_run_invalid_and_is_named(url: str, tmp_path: Path) -> None:
    pods = start_pods(tmp_path, plan_of(url, duration_s=120))
    wait_for(url, 150)
    pods[1].kill()
    output = pods[0].communicate(timeout=90)[0]
    pods[2].communicate(timeout=90)
    pods[1].communicate()
    measured, _ = read_record_lines(output.splitlines())
    # What the others sent is there; what was open when they were told to stop was given up.
    assert measured.sent >= measured.finished > 0
    assert len(measured.generators) == PARTS - 1
    verdict = judge(measured, OBJECTIVE)
    assert verdict.status == "INVALID"
    (reason,) = [reason for reason in verdict.reasons if reason.id == "process-lost"]
    assert f"generator process 2 on {socket.gethostname()} ended or stopped answering" in reason.text


def test_a_process_of_this_machine_that_dies_is_named(url: str) -> None:
    def kill() -> None:
        wait_for(url, 100)
        workers_of(os.getpid())[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    measured = generate(plan_of(url, duration_s=120, parts=2))
    killer.join()
    assert measured.lost_processes in ((f"1 on {socket.gethostname()}",), (f"2 on {socket.gethostname()}",))
    # What was open when it died never finished.
    assert measured.sent >= measured.finished > 0
    assert judge(measured, OBJECTIVE).status == "INVALID"


def test_a_running_generator_sends_one_plan_after_the_other(url: str) -> None:
    before = seen(url)
    with running_generator() as generator:
        first, second = (generator.generate(plan_of(url, parts=1, rate=rate), lambda *_: None) for rate in (50, 90))
    assert [first.sent, second.sent] == [first.good, second.good] == [100, 180]
    assert (first.warmup, second.warmup) == (50, 90)
    assert seen(url) == before + 420


def test_a_generator_that_says_nothing_any_more_is_ended(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.loadtest.sending.generator.GATHER_TIMEOUT_S", 5)
    with running_generator() as generator:
        sender = psutil.Process(generator.pid)

        def stop() -> None:
            wait_for(url, 50)
            sender.send_signal(signal.SIGSTOP)

        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(MarinaError, match="wrote nothing for 15 s and was killed"):
            generator.generate(plan_of(url, duration_s=600, parts=1), lambda *_: None)
        stopper.join()
    assert not sender.is_running()


def test_a_generator_that_does_nothing_any_more_ends_with_the_one_that_started_it() -> None:
    program = (
        "from marina.loadtest.sending import running_generator\n"
        "with running_generator() as it: print(it.pid, flush=True); input()"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        sender = psutil.Process(int(parent.stdout.readline()))
        sender.send_signal(signal.SIGSTOP)
        parent.kill()
    eventually(lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE)


def test_workers_end_with_the_leader(url: str) -> None:
    workers: list[psutil.Process] = []

    def kill() -> None:
        wait_for(url, 100)
        workers.extend(workers_of(os.getpid()))
        parent = workers[0].parent()
        assert parent is not None
        parent.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(MarinaError, match="ended without a result"):
        generate(plan_of(url, duration_s=120, parts=2))
    killer.join()
    assert len(workers) == 2
    # One that ended and that nobody waits for has no command line any more.
    eventually(lambda: not any(map(is_worker, workers)), within_s=60)


ABSENT = """
import sys
from marina.loadtest.sending import LoadPlan, leader, processes
processes.GATHER_TIMEOUT_S = 0.2
plan = LoadPlan.model_validate_json(sys.stdin.readline())
try:
    leader.Leader(plan, "127.0.0.1", 0, lambda *_: None).run({})
except Exception as err:
    print(err)
"""


def test_a_process_that_never_comes_is_named(url: str) -> None:
    words = [sys.executable, "-c", ABSENT]
    done = subprocess.run(
        words,
        input=plan_of(url, parts=2).model_dump_json() + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "processes 1, 2 of the load did not connect within 0.2 s"


WRITING = """
import gevent
import gevent.monkey
from gevent.queue import Queue
from marina.loadtest.sending.worker import LoadWorker
others_run = gevent.monkey.get_original("_thread", "allocate_lock")()
others_run.acquire()
class Measured:
    def model_dump_json(self):
        return "written" if others_run.acquire(timeout=20) else "nothing else ran meanwhile"
class Loop:
    def run(self, start):
        gevent.spawn(others_run.release)
        return Measured()
worker = LoadWorker.__new__(LoadWorker)
worker._loops, worker._moments = Queue(items=[Loop()]), Queue(items=[0.0])
worker._send = lambda name, data: print(name, data)
worker._follow()
"""


def test_heartbeats_go_on_while_the_measurement_of_hours_is_written() -> None:
    words = [sys.executable, "-c", WRITING]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    assert done.stdout == "marina_waiting {}\nmarina_measured {'measurement': 'written'}\n"
