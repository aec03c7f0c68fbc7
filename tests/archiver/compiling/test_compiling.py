"""Programs compiled in parallel: the same bytes as one by one, and nothing left of an interrupted compilation."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from packages import cache_of_nothing_compiled
from specs import digits_spec
from tools import needs
from torch._subclasses.fake_tensor import FakeTensorMode

from marina.archiver import rehearsal
from marina.archiver.compiling import compile_all, parallel, task_for, time_estimate
from marina.archiver.compiling.artifacts import inductor_settings, normalise_package
from marina.archiver.compiling.environment import cached_instruction_checks
from marina.archiver.compiling.parallel import Task
from marina.config.errors import InputError, SourceError
from marina.config.progress import Progress


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Three programs that nothing has compiled yet, on a machine with room for two at once."""
    monkeypatch.setenv("MARINA_CACHE", str(cache_of_nothing_compiled(tmp_path / "cache")))
    monkeypatch.delenv(parallel.JOBS)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    monkeypatch.setattr(parallel, "free_memory", lambda: 64_000_000_000)
    spec = digits_spec()
    programs = {batch: torch.export.export(Model(), (torch.zeros(batch, 4),)) for batch in (1, 2, 3)}
    return [task_for(spec, program, batch, None) for batch, program in programs.items()]


def compiled(tasks: list[Task], folder: Path) -> tuple[dict[str, bytes], str]:
    """The content of the compiled files, and the progress output."""
    folder.mkdir()
    compile_all(tasks, folder, Progress(stream=(said := io.StringIO())), "compile")
    return {file.name: file.read_bytes() for file in folder.iterdir()}, said.getvalue()


def compilers() -> list[psutil.Process]:
    started = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            started += [child] if "marina.archiver.compiling.child_process" in child.cmdline() else []
    return started


@pytest.mark.slow
def test_parallel_compilation_gives_the_same_bytes_and_records_its_time(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("g++", package="g++")
    tasks = tasks[:2]
    beside, said = compiled(tasks, tmp_path / "beside")
    assert sorted(beside) == ["model-b1.pt2", "model-b2.pt2"]
    assert "2 of 2 to compile, 2 at once: about " in said
    assert all(f"    batch {batch} " in said for batch in (1, 2))
    assert compilers() == []
    learnt = json.loads((tmp_path / "cache" / "pace.json").read_text(encoding="utf-8"))
    assert list(learnt) == ["2"]

    again, said = compiled(tasks, tmp_path / "again")
    assert again == beside
    assert "all taken from the cache" in said

    monkeypatch.setenv("MARINA_CACHE", "off")
    monkeypatch.setattr(parallel, "usable_cores", lambda: 1)
    here, said = compiled(tasks[:1], tmp_path / "here")
    assert here == {"model-b1.pt2": beside["model-b1.pt2"]}
    assert "at once" not in said


@pytest.mark.slow
def test_a_program_for_a_gpu_is_not_frozen_and_has_its_kernels_in_the_library() -> None:
    with FakeTensorMode():  # so that it takes no GPU
        on_gpu = torch.export.export(torch.nn.ReLU(), (torch.zeros(1, 4, device="cuda"),))
    settings = inductor_settings(on_gpu, "native")
    assert settings["aot_inductor.embed_kernel_binary"]
    assert "freezing" not in settings
    here = inductor_settings(torch.export.export(torch.nn.ReLU(), (torch.zeros(1, 4),)), "native")
    assert here["freezing"]
    assert "aot_inductor.embed_kernel_binary" not in here


def test_a_library_for_a_gpu_that_cannot_be_loaded_has_a_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = subprocess.CompletedProcess([], -signal.SIGSEGV, "", "Fatal Python error: Segmentation fault")
    monkeypatch.setattr(rehearsal, "_run_rehearsal", lambda *_: crashed)
    (tmp_path / "staged").mkdir()
    spec = digits_spec({"serving.device": "cuda", "kubernetes.resources.gpu": 1})
    with pytest.raises(SourceError, match="ended by SIGSEGV") as raised:
        rehearsal.rehearse(spec, tmp_path / "staged", Progress(quiet=True))
    assert "compile: export" in str(raised.value)


def test_no_file_of_a_compiled_package_replaces_another(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "raw.pt2", "w") as raw:
        for name in ("one", "two"):
            raw.writestr(f"raw/data/aotinductor/model/{name}.cubin", name)
    with pytest.raises(AssertionError, match="two of these files"):
        normalise_package(tmp_path / "raw.pt2", tmp_path / "model.pt2")


@pytest.mark.slow
def test_the_tasks_of_a_compiler_that_dies_are_compiled_here(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setattr(parallel, "compile_artifact", lambda *order: order[-1].write_bytes(b"here"))
    made, _ = compiled(tasks, tmp_path / "made")
    assert made == {f"model-b{batch}.pt2": b"here" for batch in (1, 2, 3)}


@pytest.mark.slow
def test_an_interrupted_compilation_leaves_no_process(tasks: list[Task], tmp_path: Path) -> None:
    def break_off() -> None:
        # Only once they are compiling, not while they start.
        while sum(compiler.cpu_times().user > 0.2 for compiler in compilers()) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    scratch, breaking = set(tmp_path.parent.iterdir()), threading.Thread(target=break_off, daemon=True)
    breaking.start()
    with pytest.raises(KeyboardInterrupt):
        compiled(tasks, tmp_path / "broken off")
    assert compilers() == []
    assert set(tmp_path.parent.iterdir()) == scratch
    assert not os.path.exists(tmp_path / "cache" / "pace.json")


def test_an_instruction_check_that_succeeds_runs_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.cpu_vec_isa import VecAVX2, VecISA

    def answer(_: VecISA, code: str) -> bool:
        tried.append(code)
        return code == "works"

    tried: list[str] = []
    monkeypatch.setenv("MARINA_CACHE", str(tmp_path))
    monkeypatch.setattr(VecISA, "check_build", answer)
    with cached_instruction_checks():
        assert [VecAVX2().check_build(code) for code in ("works", "works", "fails", "fails")] == [
            True,
            True,
            False,
            False,
        ]
    assert tried == ["works", "fails", "fails"]


@pytest.mark.parametrize(
    ("cores", "free", "at_once"),
    [(8, 64_000_000_000, 3), (2, 64_000_000_000, 2), (8, 4_000_000_000, 2), (8, 100_000_000, 1)],
)
def test_cores_and_memory_limit_how_many_are_compiled_at_once(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch, cores: int, free: int, at_once: int
) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    monkeypatch.setattr(parallel, "free_memory", lambda: free)
    assert parallel._at_once(tasks) == at_once


def test_a_user_says_how_many_are_compiled_at_once(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "free_memory", lambda: 0)
    counts = []
    for jobs in ("1", "2", "8", ""):
        monkeypatch.setenv(parallel.JOBS, jobs)
        counts.append(parallel._at_once(tasks))
    assert counts == [1, 2, 3, 1]


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_a_number_of_jobs_below_one_or_no_number_is_refused(
    jobs: str, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(parallel.JOBS, jobs)
    with pytest.raises(InputError) as raised:
        parallel._at_once(tasks)
    text = f"`MARINA_JOBS`: got `{jobs}`, allowed: a whole number from 1\n\nhint: unset MARINA_JOBS"
    assert str(raised.value) == text


def test_an_estimate_comes_from_earlier_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARINA_CACHE", str(tmp_path))
    assert time_estimate.describe_estimate([100, 100], 2) == "15 s"
    time_estimate.record_time([100, 100], 2, 100.0)
    assert time_estimate.describe_estimate([100, 100], 2) == "2 min"
    time_estimate.record_time([100, 100], 2, 20.0)
    assert time_estimate.describe_estimate([100, 100], 2) == "60 s"
    assert time_estimate.describe_estimate([100, 300], 2) == "3 min"
    assert time_estimate.describe_estimate([100], 1) == "15 s"
    (tmp_path / "pace.json").write_text("[", encoding="utf-8")
    assert time_estimate.describe_estimate([100, 100], 2) == "15 s"
