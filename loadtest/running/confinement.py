"""Limits a server that is measured to the resources of its pod.

Cores are limited by a control group (cgroup v2) if one may be made, otherwise by CPU affinity. Memory is limited by the
same group; without one, the server's peak is compared with the limit afterwards."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marina.config.machine import kernel_text, visible_cores
from marina.config.record import Part
from marina.loadtest.measuring import Machine, this_machine

_PERIOD_US = 100_000
_CONTROLLERS = ("cpu", "memory")


class ServerLimits(Part):
    """The resources that a server could use, and what limited it to them."""

    by: Literal["affinity", "cgroup", "nothing", "pod"]
    """`nothing` if the machine has no more cores than the pod may use; `pod` if the server was a pod of the cluster."""
    cores: float
    memory_bytes: int | None
    """None without a limit. With `affinity` or `nothing` it is not enforced, only compared."""
    machine: Machine
    """The server's machine."""

    def __str__(self) -> str:
        by = {
            "pod": "a pod's own limits",
            "affinity": "by CPU affinity",
            "cgroup": "by a control group",
            "nothing": "all that this machine has",
        }
        return f"{self.cores:g} core{'' if self.cores == 1 else 's'}, {by[self.by]}"


@dataclass(frozen=True)
class Confinement:
    """The function with which the server's process limits itself before it starts, and the record of the limits."""

    enter: Callable[[], None]
    record: ServerLimits


@contextmanager
def confine(cores: float, memory_bytes: int | None, root: Path = Path("/")) -> Iterator[Confinement]:
    """Prepares the limits of one server; removes the control group at the end."""
    machine = this_machine(root)
    group = _make_group(cores, memory_bytes, root)
    if group is not None:
        record = ServerLimits(by="cgroup", cores=cores, memory_bytes=memory_bytes, machine=machine)
        try:
            yield Confinement(lambda: _enter(group), record)
        finally:
            with suppress(OSError):
                group.rmdir()
        return
    available = sorted(os.sched_getaffinity(0))
    # The last cores, because the kernel's own work and the generator prefer the first.
    chosen = available[-min(len(available), max(1, math.ceil(cores))) :]
    by: Literal["affinity", "nothing"] = "affinity" if len(chosen) < len(available) else "nothing"
    record = ServerLimits(by=by, cores=len(chosen), memory_bytes=memory_bytes, machine=machine)
    yield Confinement(lambda: os.sched_setaffinity(0, chosen), record)


def _make_group(cores: float, memory_bytes: int | None, root: Path) -> Path | None:
    """Makes a control group with these limits below our own; None if that is not possible."""
    lines = kernel_text(root / "proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), None)
    if own is None or machine_lacks(cores):
        return None
    parent = root / "sys/fs/cgroup" / own
    group = parent / f"marina-{os.getpid()}"
    try:
        if not set(_CONTROLLERS) <= set((parent / "cgroup.subtree_control").read_text().split()):
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
        group.mkdir()
    except OSError:
        return None
    try:
        (group / "cpu.max").write_text(f"{round(cores * _PERIOD_US)} {_PERIOD_US}")
        if memory_bytes is not None:
            (group / "memory.max").write_text(str(memory_bytes))
            # A pod has no swap.
            with suppress(OSError):
                (group / "memory.swap.max").write_text("0")
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


def machine_lacks(cores: float) -> bool:
    """Whether the pod may use more cores than this machine has: a control group cannot add any."""
    return cores > visible_cores()


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
