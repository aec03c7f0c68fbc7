"""Merges the metrics that the workers count themselves, in the files of prometheus-client's multiprocess mode.

Each process writes one file per kind of metric. When a worker dies, its counters and histograms are added to the files
of "process 0", because a counter must never fall, and its gauges are deleted. So there are never files of more than the
live workers plus one, except on a full disk, where the files of dead workers stay until there is room. A file that
cannot be read is set aside, because it must not take the counts of all others off the page."""

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from marina.server.system.processes import identify

_RETIRED = "0"
# What prometheus-client raises for a file with anything else in it than its own counts.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, struct.error)


class WorkerMetrics:
    """The multiprocess files of one server."""

    def __init__(self, directory: Path, *, say: Callable[[str], None]) -> None:
        self._directory, self._say = directory, say
        self._lock = threading.Lock()

    def page(self) -> str:
        """All metrics of all workers, living and dead, as Prometheus text."""
        with self._lock:
            try:
                return self._render()
            except _UNREADABLE:
                self._set_aside_unreadable()
                return self._render()

    def _render(self) -> str:
        self._retire_dead()
        return _merge(self._files())

    def _set_aside_unreadable(self) -> None:
        for file in self._files():
            try:
                _merge([file])
            except _UNREADABLE as err:
                file.rename(file.with_suffix(".unreadable"))
                lost = "what it counted is not on /metrics any more"
                self._say(f"warning: the metrics file {file.name} cannot be read, so {lost}: {err}")

    def _files(self) -> list[Path]:
        """The files that can be read: an empty one, which its worker has only just made, cannot."""
        return [file for file in self._directory.glob("*.db") if file.stat().st_size]

    def _retire_dead(self) -> None:
        files = self._files()
        dead = [file for file in files if _is_of_dead(file)]
        if dead:
            # Raises before anything is added: what cannot be read must not get into the file of process 0.
            _merge(files)
        for file in dead:
            kind = file.stem.rpartition("_")[0]
            if kind.startswith("gauge") or _add(file, self._directory / f"{kind}_{_RETIRED}.db"):
                file.unlink(missing_ok=True)


def _is_of_dead(file: Path) -> bool:
    pid = file.stem.rpartition("_")[2]
    return pid.isdigit() and pid != _RETIRED and identify(int(pid)) is None


def _merge(files: Sequence[Path]) -> str:
    """The counts of these files, merged, as Prometheus text."""
    for file in files:
        with file.open("rb") as stream:
            # prometheus-client would take such a file for an empty one.
            if int.from_bytes(stream.read(4), sys.byteorder, signed=True) < 0:
                raise ValueError("its length is negative")
    # Imported late: see `metrics.py`.
    from prometheus_client import Metric, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector

    class Merged(Collector):
        """Reads the files given, not all that are in the folder."""

        def collect(self) -> Iterable[Metric]:
            return MultiProcessCollector.merge(map(str, files))  # type: ignore[no-untyped-call,no-any-return]

    return generate_latest(Merged()).decode()


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
