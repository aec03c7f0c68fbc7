"""A measured server gets as many cores as its pod: tried with real processes."""

import os
import subprocess
import sys

from marina.loadtest.measuring import this_machine
from marina.loadtest.running.target import Confinement, confine


def cores_of_a_child(confinement: Confinement) -> int:
    command = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    return int(subprocess.check_output(command, preexec_fn=confinement.enter))


def test_a_server_gets_as_many_cores_as_its_pod() -> None:
    before = os.sched_getaffinity(0)
    confinement = confine(1, 2**29)
    assert cores_of_a_child(confinement) == 1
    by, machine = "affinity" if len(before) > 1 else "nothing", this_machine()
    assert confinement.record.model_dump() == {
        "by": by, "cores": 1, "memory_bytes": 2**29, "machine": machine.model_dump()
    }  # fmt: skip
    assert os.sched_getaffinity(0) == before


def test_a_machine_with_fewer_cores_than_a_pod_gives_all_that_it_has() -> None:
    there = len(os.sched_getaffinity(0))
    confinement = confine(there + 5, None)
    assert (confinement.record.by, confinement.record.cores) == ("nothing", there)
    assert cores_of_a_child(confinement) == there
