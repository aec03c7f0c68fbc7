"""Joins what the door logs of a traced request with what its worker reports, and sends the spans."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marina.config.distribution import install_command
from marina.config.errors import ToolMissing
from marina.config.sections import Tracing
from marina.config.spec import Spec
from marina.server.java.traffic import AccessLogEntry
from marina.server.tracing.clock import Clock
from marina.server.tracing.reports import ReportSocket, parse_report

if TYPE_CHECKING:
    from marina.server.tracing.sending import SpanSender

_SDK = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
# Requests whose worker has reported them and whose answer is not logged yet.
_MOST_OPEN = 20_000
_POLL_S = 0.01


def check_sdk(spec: Spec) -> None:
    """Raises ToolMissing if the spec traces and OpenTelemetry's SDK is not installed."""
    if spec.tracing and not all(map(_is_installed, _SDK)):
        hint = f"{install_command('serve,tracing')}, or an image that `marina image` built for this spec"
        raise ToolMissing("`tracing`: OpenTelemetry's SDK is not installed", hint=hint)


def _is_installed(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec(module) is not None
    return False


class Tracer:
    """Makes the spans in a thread of its own, in the folder of a server that is about to start."""

    def __init__(
        self,
        spec: Spec,
        settings: Tracing,
        folder: Path,
        *,
        instance: str,
        port: int,
        is_inference: Callable[[AccessLogEntry], bool],
        say: Callable[[str], None],
    ) -> None:
        self._reports = ReportSocket(folder)
        self._answers: deque[AccessLogEntry] = deque()
        self._clock = Clock()
        self._begun: OrderedDict[str, int] = OrderedDict()
        self._idle = threading.Condition()
        self._taken = self._done = 0
        self._closing = False
        self._sender: SpanSender | None = None

        def run() -> None:
            # Imported here: it takes a fifth of a second, in which Java can start.
            from marina.server.tracing.sending import SpanSender
            from marina.server.tracing.spans import SpanMaker

            self._maker = SpanMaker(spec, instance, port, is_inference, self._clock)
            self._sender = SpanSender(settings.traces_url, say=say)
            self._run(self._sender)

        self._thread = threading.Thread(target=run, name="tracer", daemon=True)
        self._thread.start()

    def take(self, answers: Sequence[AccessLogEntry]) -> None:
        """Traced requests that were answered."""
        self._taken += len(answers)
        self._answers.extend(answers)
        self._reports.wake()

    def finish(self, is_logged: Callable[[], bool], timeout_s: float) -> None:
        """Waits until the spans of all answers are sent; `is_logged` says whether all are read from the access log."""
        until = time.monotonic() + timeout_s
        while not is_logged() and time.monotonic() < until:
            time.sleep(_POLL_S)
        with self._idle:
            self._idle.wait_for(lambda: self._done == self._taken, max(0, until - time.monotonic()))
        if self._sender:
            self._sender.flush(max(0, until - time.monotonic()))

    def close(self) -> None:
        """Ends the thread."""
        self._closing = True
        self._reports.wake()
        self._thread.join()
        self._reports.close()

    def sent(self) -> int:
        """How many spans the collector has taken."""
        return self._sender.sent if self._sender else 0

    def lost(self) -> int:
        """How many it has not, and never will."""
        return self._sender.lost if self._sender else 0

    def _run(self, sender: SpanSender) -> None:
        while not self._closing:
            self._reports.wait()
            # The answers first: their reports are there by then.
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            for data in self._reports.read():
                self._add_report(data, sender)
            for answer in answers:
                self._add_answer(answer, sender)
            with self._idle:
                self._done += len(answers)
                self._idle.notify_all()

    def _add_report(self, data: bytes, sender: SpanSender) -> None:
        report = parse_report(data, self._clock)
        # A request for a text waits for a slot, and not for a batch: its handler says how long.
        if report.batch:
            self._begun |= {parent.split("-")[2]: report.batch.begin_ns for parent in report.requests}
        while len(self._begun) > _MOST_OPEN:
            self._begun.popitem(last=False)
        for span in self._maker.of_report(report):
            sender.take(span)

    def _add_answer(self, answer: AccessLogEntry, sender: SpanSender) -> None:
        if answer.span:
            begun = self._begun.pop(answer.span.id, None)
            for span in self._maker.of_request(answer, answer.span, begun):
                sender.take(span)
