"""Merges the metrics that the workers count themselves, in the files of prometheus-client's multiprocess mode.

Each process writes one file per kind of metric. When a worker dies, its counters and histograms are added to the files
of "process 0", because a counter must never fall, and its gauges are deleted. So there are never files of more than the
live workers plus one, except on a full disk, where the files of dead workers stay until there is room.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from server.system import identify

_RETIRED = "0"


class WorkerMetrics:
    """The multiprocess files of one server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def page(self) -> str:
        """All metrics of all workers, living and dead, as Prometheus text."""
        # Imported late, because it takes a tenth of a second and Java should be started first.
        from prometheus_client import Metric, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector
        from prometheus_client.registry import Collector

        class Merged(Collector):
            """Reads the files given, not all that are in the folder."""

            def collect(self) -> Iterable[Metric]:
                return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call,no-any-return]

        with self._lock:
            self._retire_dead()
            files = [str(file) for file in self._files()]
            return generate_latest(Merged()).decode()

    def _files(self) -> list[Path]:
        """The files that can be read: an empty one, which its worker has only just made, cannot."""
        return [file for file in self._directory.glob("*.db") if file.stat().st_size]

    def _retire_dead(self) -> None:
        for file in self._files():
            kind, _, pid = file.stem.rpartition("_")
            if pid == _RETIRED or not pid.isdigit() or identify(int(pid)) is not None:
                continue
            if kind.startswith("gauge") or _add(file, self._directory / f"{kind}_{_RETIRED}.db"):
                file.unlink(missing_ok=True)


def _add(source: Path, target: Path) -> bool:
    """Adds the counts of a dead worker's file to another; false if the disk is full. Then the file stays, and is
    counted like that of a live worker."""
    from prometheus_client.mmap_dict import MmapedDict

    try:
        with target.open("ab") as file:
            # Writing to a mapped page for which the disk has no room would kill the supervisor.
            os.posix_fallocate(file.fileno(), 0, max(source.stat().st_size, target.stat().st_size))
    except OSError:
        if target.exists() and target.stat().st_size == 0:
            # prometheus-client cannot read an empty file.
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
