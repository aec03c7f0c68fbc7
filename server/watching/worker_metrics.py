"""What the workers count themselves, in prometheus-client's multiprocess files: merged, and kept when a worker dies.

Each process writes a file for every kind of metric. A dead worker's counters and histograms are added to the file of
process 0, because a counter must not fall; its gauges go with it. So there are never more files than live workers + 1,
but on a full disk, where those of the dead wait until there is room.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from server.system import identify

_RETIRED = "0"


class WorkerMetrics:
    """The multiprocess files of one server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def page(self) -> str:
        """Every metric of every worker, living or dead, in the text form."""
        # Late, so that Java is started before a tenth of a second of imports.
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        with self._lock:
            self._retire_dead()
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=str(self._directory))  # type: ignore[no-untyped-call]
            return generate_latest(registry).decode()

    def _retire_dead(self) -> None:
        for file in self._directory.glob("*.db"):
            kind, _, pid = file.stem.rpartition("_")
            if pid == _RETIRED or not pid.isdigit() or identify(int(pid)) is not None:
                continue
            if kind.startswith("gauge") or _add(file, self._directory / f"{kind}_{_RETIRED}.db"):
                file.unlink(missing_ok=True)


def _add(source: Path, target: Path) -> bool:
    """Whether there was room: otherwise the file of the dead stays, and counts as it is."""
    from prometheus_client.mmap_dict import MmapedDict

    try:
        with target.open("ab") as file:
            # A write to a mapped page that the disk has no room for would kill the supervisor.
            os.posix_fallocate(file.fileno(), 0, max(source.stat().st_size, target.stat().st_size))
    except OSError:
        if target.exists() and target.stat().st_size == 0:
            # Nothing that could be read as numbers.
            target.unlink()
        return False
    total = MmapedDict(str(target))  # type: ignore[no-untyped-call]
    try:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(source)):  # type: ignore[no-untyped-call]
            before, _ = total.read_value(key)  # type: ignore[no-untyped-call]
            total.write_value(key, before + value, 0.0)  # type: ignore[no-untyped-call]
    finally:
        total.close()  # type: ignore[no-untyped-call]
    return True
