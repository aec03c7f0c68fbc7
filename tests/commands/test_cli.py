import json
import os
import re
from pathlib import Path
from urllib.error import URLError

import pytest
import yaml
from golden import GOLDEN
from specs import DIGITS, ROOT
from test_docs import every_verb

import marina
from marina.config.errors import reason_of
from marina.loadtest.calibrating import CalibrateOptions
from marina.loadtest.running import RunOptions
from marina.server.system.exits import Exit

VERBS = tuple(every_verb())


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_an_example_and_the_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        marina.main([verb, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"  marina {verb} " in text.partition("examples:")[2]
    assert f"exit codes:\n  0    {'stopped by you, every' if verb == 'serve' else 'done'}" in text


@pytest.mark.parametrize("verb", ["check", "inspect", "serve", "status"])
def test_a_verb_without_progress_has_no_option_to_hide_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main([verb, "nothing", "--quiet"]) == 2
    assert "`--quiet`: unknown option" in capsys.readouterr().err


def test_the_help_of_serve_has_every_exit_code_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        marina.main(["serve", "--help"])
    text = capsys.readouterr().out
    assert [code for code in Exit if not re.search(rf"^  {code.value}    \w", text, re.MULTILINE)] == []


def test_every_verb_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        marina.main(["--help"])
    text = capsys.readouterr().out
    assert [verb for verb in VERBS if not re.search(rf"^ +{verb}\b", text, re.MULTILINE)] == []


def test_check_prints_the_completed_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["check", str(DIGITS)]) == 0
    completed = yaml.safe_load(capsys.readouterr().out)
    assert completed["serving"]["workers"] == 2
    assert completed["name"] == "digits"


def test_check_explains_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["check", "--fields"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/reference/spec.md").read_text(encoding="utf-8")


def test_the_page_of_fields_is_not_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["check", "--fields", "--json"]) == 2
    assert "`--json`: not together with `--fields`" in json.loads(capsys.readouterr().out)["error"]


def test_a_description_is_wrapped_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit):
        marina.main(["package", "--help"])
    text = capsys.readouterr().out
    assert "\nCompile the model into a MAR, and\ncompare" in text
    assert "\n  marina package config/examples/resnet50/spec.yaml\n" in text


def test_check_as_json_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    marina.main(["check", str(DIGITS)])
    text = capsys.readouterr().out
    marina.main(["check", str(DIGITS), "--json"])
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([str(DIGITS)], f"package.json: nothing was packaged yet\n\nhint: marina package {DIGITS}"),
        ([str(DIGITS), "--url", "http://127.0.0.1:1"], "`--tune`: not with `--in-cluster` or `--url`: it starts"),
        (["config/examples/tales/spec.yaml"], "`--tune`: not for a language model, which has one worker"),
    ],
)
def test_tune_says_before_it_searches_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    monkeypatch.setattr("marina.loadtest.calibrating.tune_settings", lambda *_, **__: pytest.fail("it searched"))
    assert marina.main(["calibrate", *words, "--tune", "--out", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["loadtest", "calibrate"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--context", "prod"], "`--context`: only with `--in-cluster`"),
        (["--url", "http://127.0.0.1:1", "--image", "x"], "`--image`: only with `--in-cluster`"),
        (["--in-cluster", "--url", "http://127.0.0.1:1"], "`--url`: not with `--in-cluster`, which sends to pods by"),
        (["--in-cluster", "--pages-url", "http://127.0.0.1:1"], "`--pages-url`: not with `--in-cluster`"),
        # The cluster would store it, where others can read it.
        (["--in-cluster", "--header", "Authorization: x"], "`--header`: not with `--in-cluster`"),
    ],
)
def test_options_of_another_way_to_the_servers_are_refused(
    capsys: pytest.CaptureFixture[str], verb: str, given: list[str], text: str
) -> None:
    assert marina.main([verb, str(DIGITS), *given]) == 2
    assert capsys.readouterr().err.startswith(f"error: {text}")


def test_a_wrong_spec_exits_with_2_and_nothing_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: x\nmodle: {}\n", encoding="utf-8")
    assert marina.main(["check", str(spec)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {spec}:2: `modle`: unknown field, did you mean `model`?\n"


def test_a_defect_of_marina_is_no_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of tune")

    monkeypatch.setattr("marina.config.load.load_spec", fail)
    assert marina.main(["check", str(DIGITS)]) == 70
    err = capsys.readouterr().err
    assert "RuntimeError: out of tune" in err
    assert err.endswith("this is a defect of marina: please report it, with the lines above\n")


def test_a_wrong_spec_as_json_lists_its_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: x\nmodle: {}\n", encoding="utf-8")
    assert marina.main(["check", str(spec), "--json"]) == 2
    record = json.loads(capsys.readouterr().out)
    assert [(problem["line"], problem["field"]) for problem in record["problems"]] == [(2, "modle")]


def test_check_properties_exits_with_1_when_it_finds_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.properties"
    file.write_text("batch_size=4\n", encoding="utf-8")
    assert marina.main(["check", "--properties", str(file), "--json"]) == 1
    assert "unknown-key" in {finding["rule"] for finding in json.loads(capsys.readouterr().out)}
    clean = GOLDEN / "digits/config.properties"
    assert marina.main(["check", "--properties", str(clean)]) == 0
    assert capsys.readouterr().out == f"{clean}: no problems found\n"


def test_a_rule_is_explained_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", "--explain", "pdb-blocks-drain", "--json"]) == 0
    rule = json.loads(capsys.readouterr().out)
    assert (rule["id"], rule["level"]) == ("pdb-blocks-drain", "error")
    assert rule["fix"].startswith("maxUnavailable: 1")


def test_inspect_of_another_file_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.mar").write_bytes(b"no zip")
    assert marina.main(["inspect", str(tmp_path / "x.mar")]) == 2
    assert "not a readable MAR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("check folder", "folder: is a folder, not a file\n\nhint: marina init mine\n"),
        ("check --properties gone", "gone: no such file\n\nhint: marina check --properties config.properties\n"),
        ("inspect folder", "folder: not a MAR: it has no `MAR-INF/MANIFEST.json`\n"),
        ("simulate SPEC --trace folder", "folder: cannot be read: Is a directory\n"),
        ("simulate SPEC --trace gone", "gone: cannot be read: No such file or directory\n"),
        ("loadtest SPEC --cacert gone", "`--cacert`: gone contains no certificates: No such file or directory\n"),
        ("status gone", "gone: no such spec\n\nhint: a deployment can be named without a spec: NAME -n NAMESPACE\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    words: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest"])
    (tmp_path / "folder").mkdir()
    assert marina.main(words.replace("SPEC", str(DIGITS)).split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {error}")


def test_a_reason_has_no_number_of_a_system_call_and_no_path() -> None:
    refused = URLError(ConnectionRefusedError(111, "Connection refused"))
    assert [reason_of(err) for err in (refused, URLError("no host given"), ValueError())] == [
        "Connection refused",
        "<urlopen error no host given>",
        "ValueError",
    ]


def test_the_verbs_are_listed_in_the_order_of_the_flow() -> None:
    flow = next(line for line in (ROOT / "docs/index.md").read_text("utf-8").splitlines() if "spec.yaml ─" in line)
    stages = flow.split(" ─ ")[1:]
    assert [verb for verb in VERBS if verb in stages] == stages


@pytest.mark.parametrize(
    ("verb", "meaning", "default"),
    [
        ("loadtest", "load before anything is measured", 5),
        ("calibrate", "load before each run", 2),
    ],
)
def test_an_option_that_two_verbs_share_is_explained_as_each_uses_it(
    verb: str, meaning: str, default: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        marina.main([verb, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"--warmup TIME {meaning} (default: {default})" in text
    kind = RunOptions if verb == "loadtest" else CalibrateOptions
    assert kind().warmup_s == default


@pytest.mark.parametrize("words", ["manifests", "simulate --knee 5 --cold-start 3", "loadtest", "calibrate", "serve"])
def test_a_build_folder_that_cannot_be_used_is_no_defect(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    verb, *others = words.split()
    for out in (taken, taken / "below"):
        assert marina.main([verb, str(DIGITS), *others, "--out", str(out)]) == 2
        assert "Not a directory" in capsys.readouterr().err


def test_a_build_folder_that_nobody_can_write_to_is_noticed_before_anything_is_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert marina.main(["package", str(DIGITS), "--out", "/sys"]) == 2
    said = capsys.readouterr().err
    assert "\nerror: `--out`: /sys/digits: " in said
    assert "load ./model.py" not in said


@pytest.mark.slow
def test_a_full_disk_is_no_defect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / f"digits/.simulation.html.{os.getpid()}.partial").symlink_to("/dev/full")
    words = ["simulate", str(DIGITS), "--knee", "5", "--cold-start", "3", "--out", str(tmp_path), "--quiet"]
    assert marina.main(words) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: No space left on device\n\nhint: free some space there or in the folder for "
        "temporary files, or choose others by `--out` and TMPDIR\n"
    )
