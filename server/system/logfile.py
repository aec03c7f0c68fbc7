"""A copy of the log in a file, for a log shipper beside the server. It is rotated once, so its size is bounded, and a
failure to write it never disturbs the log itself."""

from contextlib import suppress
from pathlib import Path

from marina.server.system.output import Sink

# A shipper that falls behind by more than this loses lines; we must not fill the pod's disk.
PIECE_BYTES = 32 * 2**20


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
