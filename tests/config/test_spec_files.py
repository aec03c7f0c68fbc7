"""The file of a spec, and the files that it names."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import FILE_SOURCE, changed

from marina.config.errors import InputError, SpecError
from marina.config.load import load_spec, parse_spec


def error_of(data: dict[str, Any], file: Path) -> SpecError:
    with pytest.raises(SpecError) as raised:
        parse_spec(yaml.safe_dump(data, sort_keys=False), file)
    return raised.value


@pytest.mark.parametrize(
    ("field", "file", "text"),
    [
        pytest.param("model.weights", "w.safetensors", "no such file", id="weights"),
        pytest.param("model.labels", "labels.txt", "no such file", id="labels"),
        pytest.param("model.calibration", "calibration", "no such folder", id="calibration"),
        pytest.param("load.sample", "cat.jpg", "no such file", id="sample"),
        pytest.param("load.replay", "day.csv", "no such file", id="trace"),
    ],
)
def test_a_missing_file_is_named_with_its_whole_path(field: str, file: str, text: str, tmp_path: Path) -> None:
    data = changed({field: f"./{file}"})
    error = error_of(data, tmp_path / "spec.yaml")
    assert [problem.text for problem in error.problems] == [f"{text}: `{tmp_path / file}`"]
    assert parse_spec(yaml.safe_dump(data), tmp_path / "spec.yaml", files=False).name == "shells"


def test_a_missing_sample_of_several_is_named(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    error = error_of(changed({"load.samples": {"pages/": 1, "cat.jpg": 3}}), tmp_path / "spec.yaml")
    assert [(problem.field, problem.text) for problem in error.problems] == [
        ("load.samples.cat.jpg", f"no such file or folder: `{tmp_path / 'cat.jpg'}`")
    ]


def test_all_files_are_looked_for_once_every_field_is_right(tmp_path: Path) -> None:
    data = changed({"model.weights": "w.pt", "model.calibration": "c", "load.sample": "a.jpg"})
    error = error_of(data, tmp_path / "spec.yaml")
    assert [problem.field for problem in error.problems] == ["model.weights", "model.calibration", "load.sample"]
    error = error_of(data | {"version": 5}, tmp_path / "spec.yaml")
    assert [problem.field for problem in error.problems] == ["version"]


@pytest.mark.parametrize("field", ["model.labels", "model.calibration", "load.sample"])
def test_a_path_that_is_too_long_is_a_missing_file(field: str, tmp_path: Path) -> None:
    error = error_of(changed({field: "a" * 300 + ".png"}), tmp_path / "spec.yaml")
    assert [problem.text[:8] for problem in error.problems] == ["no such "]


def test_the_hint_for_a_missing_source_is_a_whole_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    data = changed(FILE_SOURCE | {"model.source": "./modle.py:build"})
    assert error_of(data, tmp_path / "spec.yaml").hint == "source: ./model.py:build"


def test_source_and_handler_files_are_looked_for(tmp_path: Path) -> None:
    data = changed(FILE_SOURCE | {"model.handler": "./h.py:Mine"})
    error = error_of(data, tmp_path / "spec.yaml")
    assert {problem.field for problem in error.problems} == {"model.source", "model.handler"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "spec.yaml:1: the file is empty", id="empty"),
        pytest.param("- a\n", "spec.yaml:1: a mapping of fields is needed at the top", id="a list"),
        pytest.param(
            "name: [a\n",
            "spec.yaml:2: not readable as YAML: expected ',' or ']', but got '<stream end>', while parsing a flow "
            "sequence that begins on line 1",
            id="broken",
        ),
        pytest.param("name: a\nname: b\n", "spec.yaml:2: `name`: given twice, first on line 1", id="a key twice"),
        pytest.param(
            "name: a\n---\nname: b\n",
            "spec.yaml:2: not readable as YAML: expected a single document in the stream, but found another document",
            id="two documents",
        ),
        pytest.param(
            "name: a\nversion: '\x07'\n",
            "spec.yaml:2: not readable as YAML: unacceptable character #x0007: special characters are not allowed",
            id="a control character",
        ),
    ],
)
def test_a_file_that_is_not_a_spec_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(text, Path("spec.yaml"))
    assert str(raised.value.problems[0]) == message or message in str(raised.value)


def test_a_missing_spec_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such spec"):
        load_spec(tmp_path / "spec.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_spec(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(InputError, match="not readable as text"):
        load_spec(tmp_path / "latin.yaml")
