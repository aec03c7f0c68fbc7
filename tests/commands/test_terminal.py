"""What people see and type: help, version, completion, colours, and printed commands that work when copied."""

import argparse
import fcntl
import io
import json
import os
import select
import shlex
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from specs import ROOT
from tools import needs

import marina
from marina.arguments import BUILD, DEFAULT_SPEC
from marina.command import parser
from marina.config.errors import MarinaError
from marina.terminal import PLACES, coloured, completion, localised


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_marina_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: marina")
    assert err == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        marina.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("marina 0.")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("streams", ["stdout", "stderr", "both"])
def test_a_verb_ends_as_it_would_if_somebody_read_what_it_prints(streams: str, unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text("batch_size=4\n", encoding="utf-8")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "marina", "check", "--properties", str(tmp_path / "config.properties")],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE if streams == "stderr" else write,
        stderr=subprocess.PIPE if streams == "stdout" else write,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr or b"") == (1, b"")


def test_progress_that_nobody_reads_does_not_end_the_work() -> None:
    read, write = os.pipe()
    os.close(read)
    code = (
        "import marina; from marina.config.progress import Progress as P; marina.main([]); P().say('x'); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 0
    assert done.stdout.endswith(b"done\n")


@pytest.mark.slow
def test_a_pipe_whose_writers_do_not_wait_gets_all_of_the_output() -> None:
    command = [sys.executable, "-m", "marina", "check", "--fields"]
    expected = subprocess.run(command, capture_output=True, check=True).stdout
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    process = subprocess.Popen(command, stdout=write)
    # Read only once it is full.
    while select.select([], [write], [], 0)[1] and process.poll() is None:
        time.sleep(0.01)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == expected
    assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["check", "config/examples/digits/spec.yaml"], ["--help"]])
def test_a_verb_says_that_its_output_is_not_complete(arguments: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "marina", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    error = "error: not all of the output could be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, error)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code(closed: str, tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "marina", "inspect", str(tmp_path / "gone.mar")])
    assert subprocess.run(["sh", "-c", f"{command} {closed}"], stderr=subprocess.DEVNULL, check=False).returncode == 2


def test_a_terminal_without_unicode_shows_question_marks() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "marina", "image", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--base-digest sha256:?" in done.stdout


def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(completion(parser()), encoding="utf-8")

    def completed(*words: str) -> list[str]:
        asked = f"source ./script; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _marina; "
        done = subprocess.run(
            ["bash", "-c", asked + 'printf "%s\\n" "${COMPREPLY[@]}"'], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("marina", "pac") == ["package"]
    assert completed("marina", "package", "--ou") == ["--out"]
    assert completed("marina", "check", "scr") == ["script"]


@pytest.mark.parametrize("word", ["error:", "hint:", "PASS", "FAIL", "sound", "NOT SOUND"])
def test_colours_are_for_terminals_that_want_them(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = f"{word} and more"
    assert coloured(text, Terminal()).startswith("\x1b[1;")
    assert coloured(text, io.StringIO()) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured(text, Terminal()) == text


def test_words_within_a_line_have_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured("a PASS\npassword", Terminal()) == "a PASS\npassword"


def test_colours_of_other_programs_are_not_passed_on() -> None:
    error = MarinaError("\x1b[31mtorch\x1b[0m failed\x07\u202e", hint="\x1b]0;x\x07type")
    assert str(error) == "torch failed\\x07\\u202e\n\nhint: type"


@pytest.mark.parametrize(
    ("program", "path", "shown"),
    [
        pytest.param(".venv/bin/marina", "/nowhere", ".venv/bin/marina check x", id="by its path"),
        pytest.param(".venv/bin/marina", ".venv/bin", "marina check x", id="on the path"),
        pytest.param("pytest", "/nowhere", "marina check x", id="by something else"),
    ],
)
def test_commands_are_printed_as_they_work_here(
    program: str, path: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/marina").write_text("#!/bin/sh\n")
    (tmp_path / ".venv/bin/marina").chmod(0o755)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("PATH", path)
    assert localised("marina check x") == shown
    assert localised("error: a\n\nhint: marina check x") == f"error: a\n\nhint: {shown}"
    assert localised("the marina is a harbour") == "the marina is a harbour"


def test_a_program_in_a_folder_with_a_space_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["my tools/marina"])
    assert localised("marina check x") == "'my tools/marina' check x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hint: marina package SPEC", "hint: marina package 'my models/spec.yaml'"),
        ("hint: marina image SPEC pushes it", "hint: marina image 'my models/spec.yaml' pushes it"),
        ("hint: marina serve my models/spec.yaml, or wait", "hint: marina serve 'my models/spec.yaml', or wait"),
        ("hint: marina serve my models/spec.yaml2", "hint: marina serve my models/spec.yaml2"),
        ("error: my models/spec.yaml: no such spec", "error: my models/spec.yaml: no such spec"),
    ],
)
def test_the_spec_of_a_command_is_the_one_that_was_typed_as_a_shell_reads_it(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert localised(text, argparse.Namespace(spec=Path("my models/spec.yaml"))) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hint: marina package SPEC", "hint: marina package SPEC --out 'a b'"),
        ("hint: marina serve SPEC, or wait", "hint: marina serve SPEC --out 'a b', or wait"),
        ("  next: marina status SPEC", "  next: marina status SPEC --out 'a b' --context production"),
        ("hint: marina delete SPEC --context other", "hint: marina delete SPEC --out 'a b' --context other"),
        ("  next: kubectl -n a get pods", "  next: kubectl --context production -n a get pods"),
        ("is paused: `kubectl rollout resume`", "is paused: `kubectl --context production rollout resume`"),
        ("`.data` belongs to `kubectl`", "`.data` belongs to `kubectl`"),
        ("hint: marina check SPEC", "hint: marina check SPEC"),
        ("hint: marina verify --explain image-digest", "hint: marina verify --explain image-digest"),
    ],
)
def test_a_command_names_the_folder_and_the_cluster_that_were_typed(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    typed = argparse.Namespace(spec=DEFAULT_SPEC, out=Path("a b"), context="production", kubeconfig=None)
    assert localised(text, typed) == shown.replace("SPEC", str(DEFAULT_SPEC))
    here = argparse.Namespace(spec=DEFAULT_SPEC, out=BUILD, context=None)
    assert localised(text, here) == text.replace("SPEC", str(DEFAULT_SPEC))


@pytest.mark.parametrize(("option", "verb"), [(option, verb) for option in PLACES for verb in PLACES[option]])
def test_every_verb_takes_the_options_that_commands_name(option: str, verb: str) -> None:
    kind = ["evict"] if verb == "drill" else []
    assert vars(parser().parse_args([verb, "x", *kind, f"--{option}", "y"]))[option] in ("y", Path("y"))


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("inspect nowhere.mar", "marina package SPEC"),
        ("serve my_models/spec.yaml", "marina package my_models/spec.yaml"),
        ("serve my_models/spec.yaml --mar my_models/other.mar", "marina inspect my_models/other.mar"),
        ("check my_models", "marina check my_models/spec.yaml"),
        ("check --properties my_models/spec.yaml", "marina check my_models/spec.yaml"),
        ("init mine --source my_models", "--source hf:my_models"),
        ("init mine --source my_models/net.safetensors", "--source ./model.py:Net --weights my_models/net.safetensors"),
        ("init mine --source my_models/nets.py", "--source my_models/nets.py:Two"),
    ],
)
def test_a_command_that_is_printed_for_a_path_with_a_space_works_as_it_is(
    words: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    (tmp_path / "my models").mkdir()
    spec = (ROOT / "config/examples/digits/spec.yaml").read_text(encoding="utf-8").replace("./", f"{ROOT}/config/")
    (tmp_path / "my models/spec.yaml").write_text(spec, encoding="utf-8")
    nets = "import torch\nclass One(torch.nn.Module): ...\nclass Two(torch.nn.Module): ...\n"
    (tmp_path / "my models/nets.py").write_text(nets, encoding="utf-8")
    if "other.mar" in words:  # a folder with archives is a store of models
        zipfile.ZipFile(tmp_path / "my models/other.mar", "w").close()
    assert marina.main([word.replace("_", " ") for word in words.split()]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert shlex.split(hint) == ["hint:", *(word.replace("_", " ") for word in typed.split())]


def test_setup_shows_on_a_terminal_what_it_downloads(tmp_path: Path) -> None:
    needs("make", package="make")
    terminal, other_end = os.openpty()
    said = []
    for stderr in (other_end, subprocess.DEVNULL):
        command = ["make", "--dry-run", "setup", f"VENV={tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
        said.append(done.stdout)
    os.close(terminal)
    os.close(other_end)
    assert all("2.5 GB" in text for text in said)
    assert ["--quiet" in text for text in said] == [False, True]


def test_the_column_of_make_help_is_wide_enough_for_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.splitlines() if line.startswith("  make ")]
    assert lines
    assert {line[7:26].rstrip().count(" ") for line in lines} == {0}
    assert all(line[25] == " " and line[26] != " " for line in lines)


@pytest.mark.parametrize("verb", ["package", "serve", "loadtest", "calibrate", "image", "demo"])
def test_out_means_the_same_in_every_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        marina.main([verb, "--help"])
    assert "folder that holds NAME/model.mar and the records" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "verb", ["check", "package", "serve", "loadtest", "compare", "manifests", "deploy", "rollback", "delete"]
)
@pytest.mark.parametrize("folder", ["", "repository"])
def test_without_a_spec_in_this_folder_one_must_be_named(
    verb: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.chdir(ROOT if folder else tmp_path)
    assert marina.main([verb]) == 2
    named = "      marina NAME -n NAMESPACE, for what is deployed\n".replace("NAME ", f"{verb} NAME ", 1)
    assert capsys.readouterr().err == (
        f"error: `SPEC`: missing, and this folder has no spec.yaml\n\nhint: marina {verb} FOLDER/spec.yaml\n"
        f"{named if verb in ('rollback', 'status', 'delete') else ''}      marina init FOLDER, to make one\n"
    )


def test_the_spec_in_this_folder_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text("name: mine", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["check"]) == 2
    assert "spec.yaml:" in capsys.readouterr().err


def test_the_demo_takes_the_digits_example() -> None:
    assert parser().parse_args(["demo"]).spec == Path("config/examples/digits/spec.yaml")


@pytest.mark.parametrize(
    ("verb", "url", "command"),
    [
        (
            "init",
            "file:///home/you/marina_torchserve-0.1.0-py3-none-any.whl",
            "'marina-torchserve[serve,package] @ file:///home/you/marina_",
        ),
        ("verify", None, "'marina-torchserve[deploy]'"),
        ("demo", None, "'marina-torchserve[serve,package,loadtest,deploy]'"),
    ],
)
def test_a_verb_whose_packages_are_not_installed_says_what_installs_them(
    verb: str, url: str | None, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere.inside")

    origin = json.dumps({"url": url}) if url else None
    monkeypatch.setattr("importlib.metadata.PathDistribution.read_text", lambda *_: origin)
    # Not in a clone, where `make setup` installs everything.
    monkeypatch.setattr("marina.config.distribution._ROOT", Path("/nowhere"))
    monkeypatch.setattr(marina.command, "parser", lambda: _only(verb, fails))
    assert marina.main([]) == 2
    error = capsys.readouterr().err
    assert f"error: `marina {verb}` needs `nowhere`, which is not installed" in error
    assert " -m pip install 'marina-torchserve[" in error
    assert command in error


def test_a_missing_module_of_marina_is_not_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise ModuleNotFoundError("No module named 'marina.gone'", name="marina.gone")

    monkeypatch.setattr(marina.command, "parser", lambda: _only("package", fails))
    assert marina.main([]) == 70
    assert "ModuleNotFoundError: No module named 'marina.gone'" in capsys.readouterr().err


def _only(verb: str, run: Callable[[object], int]) -> argparse.ArgumentParser:
    run.__name__ = verb
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run, parser=parser, json=False)
    return parser
