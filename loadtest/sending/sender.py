"""The process that `generate` starts, `python -m marina.loadtest.sending.sender`. It reads one plan per line on stdin.

It sends a plan of one part itself; for a plan of several parts it starts as many workers and leads them. It reports on
stdout; the last line of each plan says that it is done. When stdin ends, the caller is gone or wants the load to stop.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import gevent
from gevent.fileobject import FileObjectPosix
from gevent.queue import Queue
from locust.env import Environment

from marina.config.errors import MarinaError
from marina.loadtest.measuring import GeneratorHealth, Measurement, Second, this_machine
from marina.loadtest.sending.generator import OnSecond
from marina.loadtest.sending.leader import Leader, Stopped
from marina.loadtest.sending.log_lines import END_LINE, record_lines, second_line
from marina.loadtest.sending.open_loop import OpenLoop, user_class
from marina.loadtest.sending.plan import LoadPlan
from marina.loadtest.sending.processes import child_environment, ignore_interrupts, raise_priority

_END_WITHIN_S = 10.0


class SingleProcessLoad:
    """Sends one run from this process: Locust's local runner with one user."""

    def __init__(self, plan: LoadPlan, on_second: OnSecond) -> None:
        self._on_second = on_second
        self._seconds = 0
        self._result: Queue[Measurement | Exception] = Queue()
        self.environment = Environment(user_classes=[user_class(self._follow)], host=plan.request.url)
        self._loop = OpenLoop(plan, self.environment, self._report_second)

    def stop(self) -> None:
        self._loop.stop()

    def run(self) -> Measurement:
        """Sends the schedule, starting now."""
        runner = self.environment.create_local_runner()
        runner.start(1, spawn_rate=1)
        try:
            result = self._result.get()
        finally:
            runner.quit()
        if isinstance(result, Exception):
            raise result
        return result

    def _follow(self) -> None:
        try:
            self._result.put(self._loop.run(time.perf_counter()))
        except Exception as err:
            # Without this, Locust would start the task again.
            self._result.put(err)

    def _report_second(self, beat: GeneratorHealth, second: Second) -> None:
        self._seconds += 1
        self._on_second(self._seconds, second, (beat,))


class PlanInput:
    """Reads plans from stdin, one after another; when it ends, the load that is being sent stops."""

    def __init__(self) -> None:
        self._lines: Queue[bytes] = Queue()
        self._load: SingleProcessLoad | Leader | None = None
        self._ended = False
        gevent.spawn(self._read)

    def next(self) -> LoadPlan | None:
        """Waits for the next plan; None after the last one."""
        line = self._lines.get()
        return LoadPlan.model_validate_json(line) if line else None

    def stop_at_end(self, load: SingleProcessLoad | Leader) -> None:
        """Stops this load when stdin ends."""
        self._load = load
        if self._ended:
            load.stop()

    def _read(self) -> None:
        for line in FileObjectPosix(sys.stdin.buffer.fileno(), "rb", closefd=False):
            self._lines.put(line)
        self._ended = True
        self._lines.put(b"")
        if self._load is not None:
            self._load.stop()


def main() -> int:
    """Sends the plans on stdin, one after another."""
    ignore_interrupts()
    plans = PlanInput()
    try:
        while (plan := plans.next()) is not None:
            send_plan(plan, sys.stdout, host="127.0.0.1", port=0, local=plan.parts, plans=plans)
            print(END_LINE, flush=True)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    except Stopped:
        return 0
    return 0


def send_plan(plan: LoadPlan, log: TextIO, *, host: str, port: int, local: int, plans: PlanInput | None = None) -> None:
    """Sends a plan, with its first `local` parts on this machine; writes each second and the record to `log`."""

    def on_second(number: int, second: Second, beats: Sequence[GeneratorHealth]) -> None:
        print(second_line(number, second, beats), file=log, flush=True)

    if plan.parts == 1:
        raise_priority()
        alone = SingleProcessLoad(plan, on_second)
        if plans is not None:
            plans.stop_at_end(alone)
        measured = alone.run()
    else:
        measured = _lead(Leader(plan, host, port, on_second), local, plans)
    for line in record_lines(measured, this_machine()):
        print(line, file=log, flush=True)


def _lead(leader: Leader, local: int, plans: PlanInput | None) -> Measurement:
    if plans is not None:
        plans.stop_at_end(leader)
    with _workers(leader.port, range(local)) as processes:
        return leader.run(processes)


@contextmanager
def _workers(port: int, parts: range) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Worker processes on this machine, by part; they end when Locust's master tells them to, or with this process."""
    command = [sys.executable, "-m", "marina.loadtest.sending.worker", "--port", str(port), "--part"]
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for part in parts:
            words = [*command, str(part)]
            processes[part] = subprocess.Popen(words, stdin=subprocess.PIPE, env=child_environment())
        yield processes
        for process in processes.values():
            process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
