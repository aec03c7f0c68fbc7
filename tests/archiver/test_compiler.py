"""The tests' g++ makes what the real one makes, and does it once."""

import shutil
import subprocess
import sys
from pathlib import Path

import compiler
import pytest
import torch
from tools import needs

FLAGS = ["-O1", "-fPIC", "-std=c++20", "-I", str(Path(torch.__file__).parent / "include"), '-D__FILE__="model.cpp"']
FIRST = "#include <torch/csrc/inductor/aoti_include/cpu.h>"
CODE = f"""// made of /tmp/%s
{FIRST}
extern "C" int answer() {{ return AOTI_TORCH_SUCCESS + 42; }}
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A g++ that notes with how many arguments it was called, in front of an empty memory."""
    needs("g++", package="g++")
    program = compiler.real_compiler()
    monkeypatch.setattr(compiler, "HOME", tmp_path / "home")
    compiler.HOME.mkdir()
    noting = tmp_path / "noting"
    noting.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {program} "$@"\n', encoding="utf-8")
    noting.chmod(0o755)
    return str(noting)


def compiled(real: str, folder: Path, name: str) -> bytes:
    # The object has the name of its source.
    source, target = folder / name / "source.cpp", folder / name / "source.o"
    source.parent.mkdir()
    source.write_text(CODE % name, encoding="utf-8")
    assert compiler.compile_with(real, [str(source), *FLAGS, "-c", "-o", str(target)]) == 0
    return target.read_bytes()


def calls(tmp_path: Path) -> list[str]:
    file = tmp_path / "calls"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@pytest.mark.slow
def test_headers_that_were_read_before_make_the_same_bytes(
    real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiler.ANEW, "yes")
    without, _, with_headers = (compiled(real, tmp_path, name) for name in ("first", "second", "third"))
    seen = [("c++-header" in call, "-include" in call) for call in calls(tmp_path)]
    assert seen == [(False, False), (False, False), (True, False), (False, True)]
    assert with_headers == without


def test_a_file_is_compiled_once_whatever_its_comments_say(
    real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "HEADERS", {})
    monkeypatch.setattr(sys.modules[__name__], "CODE", "// %s\nint answer() { return 42; }\n")
    first = compiled(real, tmp_path, "first")
    assert compiled(real, tmp_path, "second") == first
    assert len(calls(tmp_path)) == 1
    monkeypatch.setenv(compiler.ANEW, "yes")
    assert compiled(real, tmp_path, "third") == first
    assert len(calls(tmp_path)) == 2
    monkeypatch.delenv(compiler.ANEW)
    monkeypatch.setattr(sys.modules[__name__], "CODE", "// %s\nint answer() { return 43; }\n")
    assert compiled(real, tmp_path, "other") != first


def test_what_does_not_compile_fails_each_time(real: str, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int answer() {", encoding="utf-8")
    for _ in range(2):
        assert compiler.compile_with(real, [str(source), *FLAGS, "-c", "-o", str(tmp_path / "wrong.o")]) == 1
    assert len(calls(tmp_path)) == 2


def test_the_tests_compile_with_it() -> None:
    needs("g++", package="g++")
    assert shutil.which("g++") == str(compiler.HOME / "g++")
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("g++")
