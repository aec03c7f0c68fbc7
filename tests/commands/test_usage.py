"""What the command line says to words that it does not know."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from specs import DIGITS, ROOT

import marina

TIMES = "allowed: seconds, or a time such as `90s`, `5m`, `2h` or `1h30m`"


@pytest.mark.parametrize(
    ("words", "text", "help_of"),
    [
        ("pakage", "`VERB`: got `pakage`, did you mean `package`?", "marina"),
        ("--quiet", "`--quiet`: unknown option", "marina"),
        ("--vresion", "`--vresion`: unknown option, did you mean `--version`?", "marina"),
        ("package --ot=x", "`--ot`: unknown option, did you mean `--out`?", "marina package"),
        ("--quiet package", "`--quiet`: write it after the verb", "marina package"),
        ("check a b", "`b`: unknown argument", "marina check"),
        ("init", "`NAME`: missing", "marina init"),
        ("loadtest --rate", "`--rate`: its value is missing", "marina loadtest"),
        ("loadtest --rate x", "`--rate`: got `x`, allowed: a number", "marina loadtest"),
        ("deploy --timeout -1", "`--timeout`: got `-1`, allowed: 1 second or more", "marina deploy"),
        ("rollback --timeout nan", f"`--timeout`: got `nan`, {TIMES}", "marina rollback"),
        ("serve --port-base x", "`--port-base`: got `x`, allowed: a whole number", "marina serve"),
        ("loadtest --soak 2x", f"`--soak`: got `2x`, {TIMES}", "marina loadtest"),
        (
            "manifests --accept cores",
            "`--accept`: got `cores`, allowed: `evidence-cores`, `evidence-processor`",
            "marina manifests",
        ),
        (
            "image --target phone",
            "`--target`: got `phone`, allowed: `cpu`, `cuda`, `loadtest`, `vllm`",
            "marina image",
        ),
    ],
)
def test_a_wrong_word_is_an_error_like_any_other(
    words: str, text: str, help_of: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert marina.main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {text}\n\nhint: {help_of} --help\n"
    assert marina.main([*words.split(), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_the_hint_of_an_error_in_json_names_the_spec_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert marina.main(["serve", str(DIGITS), "--out", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["hint"] == f"marina package {DIGITS} --out {tmp_path}"


def test_ctrl_c_while_it_is_still_imported_is_no_traceback() -> None:
    interrupted = """
import sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "marina.arguments":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
import marina
sys.exit(marina.main(["--help"]))
"""
    done = subprocess.run([sys.executable, "-c", interrupted], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
