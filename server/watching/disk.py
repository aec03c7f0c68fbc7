"""The disk under the server's files: how much is free, and a warning while it is nearly full.

A full disk ends nothing: requests need none of it. A worker that has to start again does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from config.machine import LOW_TMP_BYTES


class Disk:
    """Asked by the pages; says once that it is nearly full, and once that it no longer is."""

    def __init__(self, directory: Path, *, say: Callable[[str], None], low_bytes: int = LOW_TMP_BYTES) -> None:
        self._directory, self._say, self._low_bytes = directory, say, low_bytes
        self._is_low = False

    def free_bytes(self) -> int:
        """What a process without privileges may still write; 0 where the folder is gone."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def warnings(self) -> list[str]:
        """What is wrong, in words."""
        free_bytes = self.free_bytes()
        is_low = free_bytes < self._low_bytes
        free = f"{free_bytes / 1e6:.0f} MB of disk free"
        text = f"{free} in {self._directory.parent}: a worker that dies may not start again"
        if is_low != self._is_low:
            self._is_low = is_low
            self._say(f"warning: {text}" if is_low else f"{free} again")
        return [text] if is_low else []
