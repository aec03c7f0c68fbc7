"""Starts the generator processes, keeps them in step, and merges what they measured.

They are processes of their own even when there is one: importing Locust patches the process it is in, and their share
of the processor is part of the verdict. Some may be on other machines; `crew` reaches those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from config.errors import MarinaError
from loadtest.measuring import Beat, Measurement, Second, merge, merge_seconds
from loadtest.sending.plan import LoadPlan

# What the slowest process needs to notice that all the others are ready, too.
_HEAD_START_S = 0.2

OnSecond = Callable[[int, Second, Sequence[Beat]], None]


class Channel(Protocol):
    """The way to one generator process: it is told its plan and its start, and says a line of JSON a second."""

    def tell(self, plan: LoadPlan) -> None: ...

    def start(self, moment: float) -> None:
        """Lets the schedule begin at `moment`, a time of our `time.perf_counter`."""

    def stop(self) -> None:
        """Lets it end now and say what it has."""

    def lines(self) -> Iterator[str]:
        """What it says, until it ends."""

    def close(self) -> None:
        """Leaves nothing behind."""


class LocalProcess:
    """A generator process of this machine."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "loadtest.sending.worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
        )

    def tell(self, plan: LoadPlan) -> None:
        self._order(plan.model_dump_json())

    def start(self, moment: float) -> None:
        # The machine's clock is the same for all its processes.
        self._order(json.dumps({"start": moment}))

    def stop(self) -> None:
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        # Closed by the one who reads, who may still be at it when the process has ended.
        with self._process.stdout as stream:
            yield from stream

    def close(self) -> None:
        self.stop()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


class _Member:
    """One process of a run; what it says goes to the run's queue."""

    def __init__(self, plan: LoadPlan, channel: Channel, said: SimpleQueue[tuple[int, dict[str, Any] | None]]) -> None:
        self._plan = plan
        self._channel = channel
        self._said = said
        self.start, self.stop = channel.start, channel.stop
        channel.tell(plan)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._reader.join()

    def _read(self) -> None:
        try:
            for line in self._channel.lines():
                self._said.put((self._plan.part, json.loads(line)))
        finally:
            self._said.put((self._plan.part, None))


class _Run:
    """The conversation with all processes of one run."""

    def __init__(
        self, plans: Sequence[LoadPlan], on_second: OnSecond, open_channel: Callable[[LoadPlan], Channel]
    ) -> None:
        self._plans = plans
        self._open_channel = open_channel
        self._on_second = on_second
        self._said: SimpleQueue[tuple[int, dict[str, Any] | None]] = SimpleQueue()
        self._beats: list[list[tuple[Beat, Second]]] = [[] for _ in plans]
        self._told = 0
        self._results: dict[int, Measurement] = {}

    def follow(self) -> Measurement:
        with ExitStack() as stack:
            members = [stack.enter_context(_Member(plan, self._open_channel(plan), self._said)) for plan in self._plans]
            self._wait_until_ready()
            moment = time.perf_counter() + _HEAD_START_S
            for member in members:
                member.start(moment)
            interrupted = False
            try:
                self._collect()
            except KeyboardInterrupt:
                interrupted = True
                for member in members:
                    member.stop()
                self._collect()
        measured = merge([self._results[part] for part in sorted(self._results)])
        return measured.model_copy(update={"interrupted": interrupted})

    def _wait_until_ready(self) -> None:
        for _ in self._plans:
            self._next()

    def _collect(self) -> None:
        while len(self._results) < len(self._plans):
            part, data = self._next()
            if "measurement" in data:
                self._results[part] = Measurement.model_validate(data["measurement"])
            else:
                beat = (Beat.model_validate(data["beat"]), Second.model_validate(data["second"]))
                self._beats[part].append(beat)
                self._tell()

    def _tell(self) -> None:
        if min(map(len, self._beats)) > self._told:
            beats, seconds = zip(*(each[self._told] for each in self._beats), strict=True)
            self._told += 1
            self._on_second(self._told, merge_seconds(seconds), beats)

    def _next(self) -> tuple[int, dict[str, Any]]:
        while True:
            part, data = self._said.get()
            if data is not None:
                return part, data
            if part not in self._results:
                raise MarinaError(f"generator process {part + 1} ended without a result; its last words are above")


def generate(
    plans: Sequence[LoadPlan],
    on_second: OnSecond = lambda *_: None,
    open_channel: Callable[[LoadPlan], Channel] = lambda _: LocalProcess(),
) -> Measurement:
    """Runs the plans at the same time, one process each; after Ctrl-C the measurement ends there."""
    return _Run(plans, on_second, open_channel).follow()
