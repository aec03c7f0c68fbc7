"""Prints lines to stderr from any thread without ever blocking: if nobody reads them, the oldest are dropped.

A copy of the log may go to a file, for a log shipper beside the server. It is rotated once, so its size is bounded,
and a failure to write it never disturbs the log itself."""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_MAX_LINES = 10_000
# A shipper that falls behind by more than this loses lines; we must not fill the pod's disk.
PIECE_BYTES = 32 * 2**20


class Sink(Protocol):
    """A stream of bytes that log lines are written to."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


def log_line(
    logger: str, text: str, *, as_json: bool, level: str = "INFO", fields: Mapping[str, object] | None = None
) -> str:
    """A log line in the format of TorchServe's own (`config.render_log4j2`); `fields` appear only in JSON."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    if as_json:
        return json.dumps({"time": stamp, "level": level, "logger": logger, "message": text, **(fields or {})})
    return f"{stamp} {level:<5} {logger} {text}"


class Output:
    """A queue of lines: its own thread writes them, all other threads only append."""

    def __init__(self, stream: Sink | None = None, *, max_lines: int = _MAX_LINES) -> None:
        self._stream: Sink = stream or sys.stderr.buffer
        self._lines: deque[bytes] = deque()
        self._max_lines = max_lines
        self._changed = threading.Condition()
        self._closing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, name="output", daemon=True)
        self._thread.start()

    def say(self, *lines: str | bytes) -> None:
        """Queues lines; they come without line ends."""
        with self._changed:
            self._lines += [line if isinstance(line, bytes) else line.encode(errors="replace") for line in lines]
            while len(self._lines) > self._max_lines:
                self._lines.popleft()
                self.dropped += 1
            self._changed.notify()

    def close(self, timeout_s: float = 1.0) -> None:
        """Writes the queued lines, and gives up after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                if not self._lines:
                    return
                text = b"".join(line + b"\n" for line in self._lines)
                self._lines.clear()
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                # The reader has gone; the server goes on without a log.
                return


class LogFile:
    """Writes to a stream and to a file. A full file is renamed to `NAME.1`, and a new one is begun."""

    def __init__(self, stream: Sink, file: Path, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._stream, self._path, self._piece_bytes = stream, file, piece_bytes
        self._file = file.open("ab", buffering=0)
        self._size = file.stat().st_size

    def write(self, data: bytes) -> None:
        """Writes to both; raises OSError if the stream is closed."""
        self._stream.write(data)
        with suppress(OSError):
            # A full disk costs the shipper its copy, but the log goes on.
            self._copy(data)

    def _copy(self, data: bytes) -> None:
        if self._size + len(data) > self._piece_bytes:
            with suppress(FileNotFoundError):
                # Somebody else may have renamed or removed it.
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            begun = self._path.open("ab", buffering=0)
            self._file.close()
            self._file, self._size = begun, 0
        self._file.write(data)
        self._size += len(data)

    def flush(self) -> None:
        """Flushes the stream; the file has no buffer."""
        self._stream.flush()
