"""Watches the disk that holds the server's files, and warns while it is nearly full.

A full disk stops nothing at once, because requests need no disk space. But a worker that restarts does."""

import os
from collections.abc import Callable
from pathlib import Path

from marina.config.machine import LOW_TMP_BYTES


class Disk:
    """Free space of one disk. Logs once when it is nearly full, and once when there is space again."""

    def __init__(self, directory: Path, *, say: Callable[[str], None], low_bytes: int = LOW_TMP_BYTES) -> None:
        self._directory, self._say, self._low_bytes = directory, say, low_bytes
        self._is_low = False

    def free_bytes(self) -> int:
        """Bytes that an unprivileged process can still write; 0 if the folder is gone."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def warnings(self) -> list[str]:
        """The warnings to show on `/ready`; none if there is enough space."""
        free_bytes = self.free_bytes()
        is_low = free_bytes < self._low_bytes
        free = f"{free_bytes / 1e6:.0f} MB of disk free"
        text = f"{free} in {self._directory.parent}: a worker that dies may not start again"
        if not self._directory.exists():
            text = f"{self._directory} was deleted: a worker that dies cannot start again, only a new server can"
        if is_low != self._is_low:
            self._is_low = is_low
            self._say(f"warning: {text}" if is_low else f"{free} again")
        return [text] if is_low else []
