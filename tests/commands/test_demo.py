"""The errors of `marina demo` when a stage fails, and whether the pages show what it prints."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from golden import GOLDEN
from specs import DIGITS, ROOT
from test_loadtest_report import PASSED, REPEATED

import marina
from marina.command import parser
from marina.config.measured import Check, Reason, Verdict
from marina.starting.demo import _load_text, _next_commands, _NotPassed

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def normalised(text: str) -> str:
    """The output of a run without its numbers, which differ between machines."""
    text = re.sub(r"\b[0-9a-f]{12}…", "HASH…", text)
    text = re.sub(r"\d+(,\d{3})*(\.\d+)*", "N", text)
    # The column of the comments depends on the length of the path.
    text = re.sub(r" {2,}# ", "  # ", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def shown_in(page: Path) -> list[str]:
    """The output below `$ make demo` on a page, to the end of the block."""
    return re.findall(
        r"^\$ (?:make|marina) demo\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_pages_show_what_a_demo_prints() -> None:
    expected = (GOLDEN / "demo/transcript.txt").read_text(encoding="utf-8")
    blocks = [block for page in PAGES for block in shown_in(page)]
    assert blocks
    for block in blocks:
        # A page may leave out the lines at the end.
        assert expected.startswith(normalised(block)), block


def test_the_commands_that_it_prints_parse() -> None:
    following = (GOLDEN / "demo/transcript.txt").read_text(encoding="utf-8").partition("\nnext\n")[2].splitlines()
    commands = [line.partition("#")[0].split() for line in following]
    assert [parser().parse_args(words[1:]).run.__name__ for words in commands] == [
        "serve",
        "calibrate",
        "init",
        "doctor",
    ]


def test_the_commands_for_paths_with_spaces_parse_too() -> None:
    spec, out = Path("my models/spec.yaml"), Path("my build")
    for command, _ in _next_commands(spec, out)[:2]:
        options = parser().parse_args(shlex.split(command)[1:])
        assert (options.spec, options.out) == (spec, out)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    shutil.copytree(DIGITS.parent, tmp_path / "digits")
    return tmp_path / "digits"


def test_a_wrong_spec_stops_it_at_once(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (digits / "digits.safetensors").unlink()
    assert marina.main(["demo", str(digits / "spec.yaml"), "--out", str(digits / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the demo stopped at `check`: ")
    assert "`model.weights`: no such file" in err


def test_a_spec_without_an_objective_stops_it_before_anything_is_compiled(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = yaml.safe_load((digits / "spec.yaml").read_text(encoding="utf-8"))
    (digits / "spec.yaml").write_text(yaml.safe_dump(spec | {"slo": None}), encoding="utf-8")
    assert marina.main(["demo", str(digits / "spec.yaml"), "--out", str(digits / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, (digits / "out").exists()) == ("", False)
    assert "the demo stopped at `check`: " in err
    assert "`slo`: missing, a verdict needs an objective" in err


def test_a_model_that_cannot_be_packaged_stops_it(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = yaml.safe_load((digits / "spec.yaml").read_text(encoding="utf-8"))
    spec["model"]["image"]["channels"] = 3
    (digits / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    assert marina.main(["demo", str(digits / "spec.yaml"), "--out", str(digits / "out")]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("check      ")
    assert err.startswith("error: the demo stopped at `package`: ")
    assert not (digits / "out/digits/model.mar").exists()


def test_without_a_compiler_it_says_so_and_compiles_nothing(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    # Far enough to see that packaging has begun.
    (digits / "labels.txt").write_text("one\n", encoding="utf-8")
    assert marina.main(["demo", str(digits / "spec.yaml"), "--out", str(digits / "out")]) == 2
    out, err = capsys.readouterr()
    assert "           there is no C++ compiler, so the model is served uncompiled: apt-get install g++\n" in out
    assert err.startswith("error: the demo stopped at `package`: ")
    assert "`model.labels`" in err


@pytest.mark.parametrize(("status", "code"), [("FAIL", 1), ("INVALID", 3)])
def test_another_verdict_than_pass_is_an_error_with_its_reasons(status: str, code: int) -> None:
    reason = Reason(id="p99-over", text="p99 is 61 ms, allowed: 50 ms")
    check = Check(objective="p99", status=status, limit=50, measured=61, unit="ms", reasons=(reason,))  # type: ignore[arg-type]
    err = _NotPassed(Verdict(status=status, reasons=(), checks=(check,)), Path("out"))  # type: ignore[arg-type]
    assert (err.exit_code, err.hint) == (code, "if other programs use this machine's cores, stop them and try again")
    assert err.message == f"the verdict is {status}, report out/verdict.html\n  p99-over: p99 is 61 ms, allowed: 50 ms"


def test_a_demo_tells_what_was_sent_in_all_its_runs() -> None:
    assert _load_text(PASSED, 200) == "2,000 requests at 200/s, open loop: 0 errors, p50 23.02 ms, p99 26 ms"
    text = _load_text(REPEATED, 200)
    assert text == "6,000 requests at 200/s in 3 runs, open loop: 200 errors, p50 33.26 ms, p99 66 ms"
