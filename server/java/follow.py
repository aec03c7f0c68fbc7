"""Reads Java's stdout and stderr as fast as Java writes: counts the access log, and passes everything else on to
stderr, such as why a Java that cannot start or crashes does so, which it writes to stdout.

Java blocks while a pipe is full, so these threads wait for nothing but the pipe. The counts never miss a line; printed
lines are dropped if nobody reads them (`Output`)."""

import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO

from marina.config.spec import Spec
from marina.server.java.traffic import AccessLogEntry, Traffic, parse_line
from marina.server.system.output import Output, log_line

# The largest size that a pipe may have without privileges: half a second of access log at 10,000 requests a second.
_PIPE_BYTES = 1 << 20
# Lines on Java's stdout that are not printed: the access log, and what TorchServe says there at every start.
_SILENT = (b"A ", b"WARNING: sun.reflect.Reflection", b"nvidia-smi not available", b"Model server started")
# Above this rate, `access_log: auto` logs errors only, and at most so many of them a second.
MOST_RPS = 20


class RequestLog:
    """Formats the lines to print for requests, at most one each, as `serving.access_log` says. Never shows a query, a
    body or a header."""

    def __init__(self, spec: Spec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._mode = spec.serving.access_log
        self._limit = MOST_RPS
        self.as_json = spec.serving.log == "json"
        self._model = spec.name
        self._clock = clock
        self._second = -1
        self._seen = 0
        self._busy = False
        self._errors: Counter[int] = Counter()

    def lines(self, answers: Iterable[AccessLogEntry]) -> list[str]:
        """The lines to print for these answers."""
        if self._mode == "off":
            return []
        if self._mode != "auto":
            return [self._format(answer) for answer in answers if self._mode == "all" or answer.code >= 400]
        printed = self._next_second()
        return printed + [self._format(answer) for answer in answers if self._should_print(answer)]

    def _next_second(self) -> list[str]:
        """Resets the counts when a new second begins; returns a line about the errors that were not printed in the last
        one, if there were any."""
        second = int(self._clock())
        if second == self._second:
            return []
        # Lines are printed again only after a whole second under the limit, so that the log does not switch back and
        # forth.
        self._busy = self._seen > self._limit and second == self._second + 1
        hidden = self._errors.total() - self._limit
        text = f"{hidden} more errors in a second, of {_counts_text(self._errors)}"
        self._second, self._seen, self._errors = second, 0, Counter()
        return [log_line("request", text, as_json=self.as_json, fields={"model": self._model})] if hidden > 0 else []

    def _should_print(self, answer: AccessLogEntry) -> bool:
        self._seen += 1
        if answer.code >= 400:
            # A server that refuses thousands of requests a second would fill the log and burn CPU on it.
            self._errors[answer.code] += 1
            return self._errors.total() <= self._limit
        return not self._busy and self._seen <= self._limit

    def _format(self, answer: AccessLogEntry) -> str:
        trace = f" trace {answer.trace}" if answer.trace else ""
        text = f"{answer.method} {answer.path} {answer.code} {answer.duration_ms} ms{trace}"
        fields = {
            "model": self._model,
            "method": answer.method,
            "path": answer.path,
            "code": answer.code,
            "duration_ms": answer.duration_ms,
            **({"trace_id": answer.trace} if answer.trace else {}),
        }
        return log_line("request", text, as_json=self.as_json, fields=fields)


def _counts_text(errors: Counter[int]) -> str:
    return ", ".join(f"{count} with {code}" for code, count in errors.most_common())


def follow_access_log(
    pipe: IO[bytes],
    traffic: Traffic,
    log: RequestLog,
    output: Output,
    *,
    trace: Callable[[Sequence[AccessLogEntry]], object] | None = None,
) -> threading.Thread:
    """Starts a thread that counts Java's answers from its access log; it ends with Java's stdout. `trace` gets those
    that are traced, before they are counted."""

    def take(lines: list[bytes]) -> None:
        parsed = (parse_line(line.decode(errors="replace")) for line in lines)
        answers = [answer for answer in parsed if answer]
        unusual = [_shown(line, log) for line in lines if not line.startswith(_SILENT)]
        if trace and (traced := [answer for answer in answers if answer.span]):
            trace(traced)
        printed = log.lines(traffic.record(answers))
        if unusual or printed:
            output.say(*unusual, *printed)

    return _follow(pipe, take, "access-log")


def follow_errors(pipe: IO[bytes], log: RequestLog, output: Output) -> threading.Thread:
    """Starts a thread that prints the lines of Java and the workers; it ends with Java's stderr."""
    return _follow(pipe, lambda lines: output.say(*(_shown(line, log) for line in lines)), "java-log")


def _shown(line: bytes, log: RequestLog) -> bytes | str:
    """The line; as an object if the log must be JSON and Java itself, not its logger, has written it."""
    if not log.as_json or line.startswith(b"{"):
        return line
    return log_line("java", line.decode(errors="replace"), as_json=True)


def _follow(pipe: IO[bytes], take: Callable[[list[bytes]], None], name: str) -> threading.Thread:
    def read() -> None:
        rest = b""
        # One buffer for all reads: allocating one of this size for each, and cutting it, would fragment the memory.
        buffer = bytearray(_PIPE_BYTES)
        while count := os.readv(pipe.fileno(), [buffer]):
            *lines, rest = (rest + bytes(memoryview(buffer)[:count])).split(b"\n")
            if len(rest) > _PIPE_BYTES:
                lines, rest = [*lines, rest], b""
            take([line for line in lines if line])
        if rest:
            take([rest])

    # Fails if this user has many large pipes already. The default of 64 KiB works too, with less slack.
    with suppress(PermissionError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    thread = threading.Thread(target=read, name=name, daemon=True)
    thread.start()
    return thread
