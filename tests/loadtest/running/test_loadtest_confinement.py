"""A measured server is limited to its pod's resources: tried with real processes, and with the files of a cgroup v2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marina.loadtest.running.confinement import Confinement, ServerLimits, confine

CPUINFO = "model name\t: A Processor  @ 2 GHz\nflags\t\t: fpu avx2 avx512f sse\n"


def cores_of_a_child(confinement: Confinement) -> int:
    command = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    return int(subprocess.check_output(command, preexec_fn=confinement.enter))


@pytest.fixture
def modern(tmp_path: Path) -> Path:
    """The files of a machine with cgroup v2, where groups may be made."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    (tmp_path / "proc/self/cgroup").write_text("0::/user/ours\n")
    ours = tmp_path / "sys/fs/cgroup/user/ours"
    ours.mkdir(parents=True)
    (ours / "cgroup.subtree_control").write_text("memory")
    return tmp_path


def group_of(root: Path) -> Path:
    return root / f"sys/fs/cgroup/user/ours/marina-{os.getpid()}"


def test_without_control_groups_a_server_gets_as_many_cores_as_its_pod(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with confine(1, None, tmp_path) as confinement:
        assert cores_of_a_child(confinement) == 1
        assert confinement.record.cores == 1
        assert confinement.record.by == ("affinity" if len(before) > 1 else "nothing")
    assert os.sched_getaffinity(0) == before


def test_a_machine_with_fewer_cores_than_a_pod_gives_all_that_it_has(tmp_path: Path) -> None:
    there = len(os.sched_getaffinity(0))
    with confine(there + 5, None, tmp_path) as confinement:
        assert (confinement.record.by, confinement.record.cores) == ("nothing", there)
        assert cores_of_a_child(confinement) == there


def test_a_control_group_limits_a_server_to_parts_of_a_core_and_to_its_memory(modern: Path) -> None:
    with confine(0.5, 512 * 2**20, modern) as confinement:
        group = group_of(modern)
        assert (group / "cpu.max").read_text() == "50000 100000"
        assert (group / "memory.max").read_text() == str(512 * 2**20)
        assert "+cpu" in (group.parent / "cgroup.subtree_control").read_text()
        confinement.enter()
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (confinement.record.by, confinement.record.cores) == ("cgroup", 0.5)


def test_without_permission_for_a_group_cpu_affinity_is_used(modern: Path) -> None:
    ours = group_of(modern).parent
    (ours / "cgroup.subtree_control").unlink()
    with confine(1, None, modern) as confinement:
        assert confinement.record.by in ("affinity", "nothing")
    assert list(ours.iterdir()) == []


def test_the_record_names_the_processor_and_its_instructions(modern: Path) -> None:
    with confine(1, None, modern) as confinement:
        record = ServerLimits.model_validate_json(confinement.record.model_dump_json())
    assert record.machine.processor == "A Processor @ 2 GHz"
    assert record.machine.isa == ("avx2", "avx512f")
