"""A load that comes from several pods: `python -m loadtest.sending.crew PLAN`, one process in each.

The first one leads: it takes the connections of the others, tells all of them when to start, and says what they
measured together on its output, which is the pod's log. The others connect and do as they are told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from config.errors import MarinaError
from loadtest.measuring import Beat, Second, this_machine
from loadtest.sending.generator import Channel, LocalProcess, generate
from loadtest.sending.log_lines import record_lines, second_line
from loadtest.sending.plan import LoadPlan

# A node may have to pull the image first.
_TOGETHER_WITHIN_S = 600.0


def main() -> int:
    """Runs one part of a plan; the leader's is part 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.sending.crew", description="one pod of a load test")
    parser.add_argument("plan", type=Path, help="the plan as JSON, the same in every pod")
    parser.add_argument("--part", type=int, default=int(os.environ.get("JOB_COMPLETION_INDEX", "0")))
    parser.add_argument("--leader", default="127.0.0.1", help="where part 0 listens")
    parser.add_argument("--port", type=int, required=True, help="of the leader")
    options = parser.parse_args()
    try:
        plan = LoadPlan.model_validate_json(options.plan.read_text(encoding="utf-8"))
        if options.part == 0:
            lead(plan, options.port, sys.stdout)
        else:
            follow(options.leader, options.port, options.part)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    return 0


def lead(plan: LoadPlan, port: int, log: TextIO) -> None:
    """Part 0: runs its own part and everybody's clock."""

    def on_second(number: int, second: Second, beats: Sequence[Beat]) -> None:
        print(second_line(number, second, beats), file=log, flush=True)

    plans = [plan.model_copy(update={"part": part}) for part in range(plan.parts)]
    with socket.create_server(("", port), backlog=plan.parts) as listener:
        others = _gather(listener, plan.parts)
        measured = generate(plans, on_second, lambda each: others[each.part] if each.part else LocalProcess())
    for line in record_lines(measured, this_machine()):
        print(line, file=log, flush=True)


def follow(leader: str, port: int, part: int) -> None:
    """Any other part: does as the leader says."""
    # Importing it patches this process.
    from gevent import socket as patient

    from loadtest.sending.worker import work

    with _connected(leader, port) as connection:
        connection.sendall(json.dumps({"part": part}).encode() + b"\n")
        file = patient.socket(fileno=connection.detach()).makefile("rw", encoding="utf-8")
        work(file, file)


class _Connection:
    """A process of another pod."""

    def __init__(self, connection: socket.socket, reader: Any) -> None:
        self._connection = connection
        self._reader = reader

    def tell(self, plan: LoadPlan) -> None:
        self._order(plan.model_dump_json())

    def start(self, moment: float) -> None:
        self._order(json.dumps({"start_in": moment - time.perf_counter()}))

    def stop(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def lines(self) -> Iterator[str]:
        yield from self._reader

    def close(self) -> None:
        # What was asked for is here; a reader that still waits gets the end of the stream.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _order(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")


def _gather(listener: socket.socket, parts: int) -> dict[int, Channel]:
    """The connections of all other parts, once all are there."""
    until, found = time.monotonic() + _TOGETHER_WITHIN_S, dict[int, Channel]()
    while len(found) < parts - 1:
        listener.settimeout(max(0.0, until - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError as err:
            missing = sorted(set(range(1, parts)) - found.keys())
            raise MarinaError(f"parts {missing} of the load did not come within {_TOGETHER_WITHIN_S:g} s") from err
        connection.settimeout(None)
        reader = connection.makefile("r", encoding="utf-8")
        part = json.loads(reader.readline())["part"]
        # A pod that was started again takes its earlier self's place.
        found[part] = _Connection(connection, reader)
    return found


def _connected(leader: str, port: int) -> socket.socket:
    """A connection to the leader, as soon as it has a name and listens."""
    until = time.monotonic() + _TOGETHER_WITHIN_S
    while True:
        try:
            connection = socket.create_connection((leader, port), timeout=5)
            connection.settimeout(None)
            return connection
        except OSError as err:
            if time.monotonic() > until:
                raise MarinaError(f"no leader at {leader}:{port}: {err}") from err
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
