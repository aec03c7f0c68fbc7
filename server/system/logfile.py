"""The log as a file as well, for a shipper beside the server: never larger than two pieces, and never in the way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from server.system.output import Sink

# A shipper that is behind by more than this loses lines; the pod's disk is not ours to fill.
PIECE_BYTES = 32 * 2**20


class LogFile:
    """Writes to a stream and to a file that starts anew when it is full; the full one stays as `NAME.1`."""

    def __init__(self, stream: Sink, file: Path, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._stream, self._path, self._piece_bytes = stream, file, piece_bytes
        self._file = file.open("ab", buffering=0)
        self._size = file.stat().st_size

    def write(self, data: bytes) -> None:
        """To both; OSError when the stream is gone."""
        self._stream.write(data)
        with suppress(OSError):
            # A full disk takes the shipper's copy, not the log.
            self._copy(data)

    def _copy(self, data: bytes) -> None:
        if self._size + len(data) > self._piece_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file, self._size = self._path.open("ab", buffering=0), 0
        self._file.write(data)
        self._size += len(data)

    def flush(self) -> None:
        """The file is written without a buffer."""
        self._stream.flush()
