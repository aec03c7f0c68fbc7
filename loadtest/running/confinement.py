"""Limits a server that is measured to as many cores as its pod gets, by CPU affinity.

Its memory is not limited, only compared with the pod's limit afterwards."""

import math
import os
from collections.abc import Callable
from typing import Literal, NamedTuple

from marina.config.record import Part
from marina.loadtest.measuring import Machine, this_machine


class ServerLimits(Part):
    """The resources that a server could use, and what limited it to them."""

    by: Literal["affinity", "nothing", "pod"]
    """`nothing` if the machine has no more cores than the pod may use; `pod` if the server was a pod of the cluster."""
    cores: float
    memory_bytes: int | None
    """None without a limit. Only a pod's is enforced; that of others is compared."""
    machine: Machine
    """The server's machine."""

    def __str__(self) -> str:
        by = {"pod": "a pod's own limits", "affinity": "by CPU affinity", "nothing": "all that this machine has"}
        return f"{self.cores:g} core{'' if self.cores == 1 else 's'}, {by[self.by]}"


class Confinement(NamedTuple):
    """The function with which the server's process limits itself before it starts, and the record of the limits."""

    enter: Callable[[], None]
    record: ServerLimits


def confine(cores: float, memory_bytes: int | None) -> Confinement:
    """Prepares the limits of one server."""
    available = sorted(os.sched_getaffinity(0))
    # The last cores, because the kernel's own work and the generator prefer the first.
    chosen = available[-min(len(available), max(1, math.ceil(cores))) :]
    by: Literal["affinity", "nothing"] = "affinity" if len(chosen) < len(available) else "nothing"
    record = ServerLimits(by=by, cores=len(chosen), memory_bytes=memory_bytes, machine=this_machine())
    return Confinement(lambda: os.sched_setaffinity(0, chosen), record)
