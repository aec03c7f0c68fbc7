"""A worker of a load that several processes send: `python -m marina.loadtest.sending.worker`, started by the leader.

It is a Locust worker: it connects to its master, gets its share of the schedule and the moment to start, and reports
what happens."""

import argparse
import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import locust.runners
from gevent.fileobject import FileObjectPosix
from gevent.queue import Queue
from locust.env import Environment

from marina.config.errors import MarinaError
from marina.loadtest.measuring import GeneratorHealth, Second
from marina.loadtest.sending import processes
from marina.loadtest.sending.open_loop import OpenLoop, user_class
from marina.loadtest.sending.plan import LoadPlan

_CONNECT_S, _RETRY_S = 5.0, 0.2


def main() -> int:
    """Joins the leader on this machine, and ends when the leader does."""
    parser = argparse.ArgumentParser(
        prog="python -m marina.loadtest.sending.worker", description="one worker of a load"
    )
    parser.add_argument("--port", type=int, required=True, help="where the leader listens")
    parser.add_argument("--part", type=int, required=True, help="which share of the schedule this one sends")
    options = parser.parse_args()
    processes.ignore_interrupts()
    gevent.spawn(_end_with_leader)
    work("127.0.0.1", options.port, options.part)
    return 0


def work(leader: str, port: int, part: int) -> None:
    """Sends one part of the leader's load, until the leader ends; MarinaError if there is no leader."""
    _await_leader(leader, port)
    processes.raise_priority()
    # By the machine's clock, which may jump, Locust would take the leader for lost.
    locust.runners.time = SimpleNamespace(time=time.monotonic)  # type: ignore[assignment, attr-defined]
    LoadWorker(leader, port, part).join()


def _await_leader(host: str, port: int) -> None:
    """Waits longer than Locust would: the leader's node may have to pull the image first."""
    until = time.monotonic() + processes.GATHER_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
            return
        except OSError as err:
            if time.monotonic() > until:
                raise MarinaError(f"no leader of the load at {host}:{port}: {err}") from err
            time.sleep(_RETRY_S)


class LoadWorker:
    """Sends one part of a load. Locust's greenlet receives the leader's messages, the user's follows the schedule."""

    def __init__(self, leader: str, port: int, part: int) -> None:
        self._part = part
        self._loops: Queue[OpenLoop] = Queue()
        self._moments: Queue[float] = Queue()
        self._loop: OpenLoop | None = None
        # Without options, Locust would read those of its command line from files and the environment.
        options = Namespace(web_base_path="")
        self._environment = Environment(user_classes=[user_class(self._follow)], parsed_options=options)
        try:
            self._runner = self._environment.create_worker_runner(leader, port)
        except ConnectionError as err:
            raise MarinaError(f"no leader of the load at {leader}:{port}") from err
        answers: dict[str, Callable[[dict[str, Any]], None]] = {
            processes.PLAN: self._take_plan,
            processes.CLOCK: self._report_clock,
            processes.START: lambda data: self._moments.put(data["at"]),
            processes.STOP: self._stop,
        }
        for name, answer in answers.items():
            processes.listen(self._runner, name, answer)
        self._send(processes.HERE, {"client": self._runner.client_id})

    def join(self) -> None:
        """Waits until the leader ends the load."""
        self._runner.greenlet.join()

    def _follow(self) -> None:
        loop = self._loops.get()
        self._send(processes.WAITING, {})
        try:
            measured = loop.run(self._moments.get())
        except Exception as err:
            # Without this, Locust would start the task again; and the leader must know of it.
            self._send(processes.FAILED, {"error": f"{type(err).__name__}: {err}"})
            return
        # In a thread, because the measurement of hours takes seconds to write, in which heartbeats must go on.
        text = gevent.get_hub().threadpool.apply(measured.model_dump_json)
        self._send(processes.MEASURED, {"measurement": text})

    def _take_plan(self, data: dict[str, Any]) -> None:
        try:
            plan = LoadPlan.model_validate_json(data["plan"])
            self._loop = OpenLoop(plan, self._environment, self._report_second)
            self._loops.put(self._loop)
        except (ValueError, OSError) as err:
            self._send(processes.FAILED, {"error": f"{type(err).__name__}: {err}"})

    def _report_second(self, beat: GeneratorHealth, second: Second) -> None:
        self._send(processes.SECOND, {"beat": beat.model_dump(), "second": second.model_dump(mode="json")})

    def _report_clock(self, data: dict[str, Any]) -> None:
        self._send(processes.CLOCK, data | {"clock": time.perf_counter()})

    def _stop(self, _: dict[str, Any]) -> None:
        if self._loop is not None:
            self._loop.stop()

    def _send(self, name: str, data: dict[str, Any]) -> None:
        self._runner.send_message(name, data | {"part": self._part})


def _end_with_leader() -> None:
    """Waits until the pipe from the leader is closed, which happens however the leader ends, then exits."""
    FileObjectPosix(sys.stdin.buffer.fileno(), "rb", closefd=False).read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
