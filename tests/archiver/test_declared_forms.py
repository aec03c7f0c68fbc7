"""The forms that a user's own handler declares: which are refused, and where they end up."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from specs import FILE_SOURCE, make_spec

from marina.archiver.own_handler import check_answer, declared_forms
from marina.archiver.package import package
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.spec import Spec

MODEL = """
from torch import nn

def build():
    return nn.Linear(3, 2)
"""
HANDLER = """
import json
import numpy as np
from marina.handlers import Answer, Form, Handler

class Sums(Handler):
    takes = {takes}
    gives = {gives}

    def decode(self, request):
        return [np.array(request.json()["values"], np.float32)]

    def encode(self, outputs, request):
        return Answer(json.dumps({{"sums": outputs[0].tolist()}}).encode())
"""
TAKES = 'Form({"type": "object", "required": ["values"]}, {"values": [1, 2, 3]})'
GIVES = 'Form({"type": "object", "properties": {"sums": {"type": "array", "minItems": 2}}, "required": ["sums"]})'


def written(folder: Path, takes: str = TAKES, gives: str = GIVES) -> Spec:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "sums.py").write_text(HANDLER.format(takes=takes, gives=gives), encoding="utf-8")
    changes: dict[str, Any] = {"model.handler": "./sums.py:Sums", "model.compile": "eager", "model.batch_sizes": [1]}
    return make_spec(FILE_SOURCE | changes, folder / "spec.yaml")


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        pytest.param('{"type": "object"}', "got `dict`, allowed: a `Form`", id="no form"),
        pytest.param('Form({"type": "objct"})', "`$.type` is not a JSON schema: 'objct' is not", id="no schema"),
        pytest.param('Form({"type": {1}})', "is not JSON: Object of type set is not JSON serializable", id="no JSON"),
        pytest.param(
            'Form({"type": "object", "required": ["a"]}, {})',
            "its example does not fit its schema: `$`: 'a' is a required property",
            id="an example of another form",
        ),
        *(
            pytest.param(
                f'Form({{"$ref": "{reference}"}}, 1)',
                "its example cannot be compared with its schema, because of a `$ref` in it: ",
                id=f"a reference to {reference}",
            )
            for reference in ("#", "#/nowhere")
        ),
        pytest.param(
            'Form({}, {}, "text/plain")', "its example is `dict`, allowed for `text/plain`: a text", id="text"
        ),
    ],
)
def test_a_wrong_form_is_refused(takes: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        declared_forms(written(tmp_path, takes=takes))
    assert str(raised.value).startswith(f"{tmp_path / 'spec.yaml'}: `Sums.takes`: {said}")


@pytest.mark.parametrize("answer", [b"", b"{sums", b"\xff"])
def test_an_answer_that_is_declared_as_json_and_is_none_is_refused(answer: bytes, tmp_path: Path) -> None:
    spec = written(tmp_path)
    _, gives = declared_forms(spec)
    assert gives
    with pytest.raises(SourceError, match=r"`Sums\.gives`: the answer to the sample is not JSON: "):
        check_answer(spec, gives, "application/json", answer)


@pytest.mark.slow
def test_what_is_declared_is_in_the_record_and_its_example_is_the_sample(tmp_path: Path) -> None:
    record = package(written(tmp_path), tmp_path / "build", progress=Progress(quiet=True)).record
    assert record.takes is not None
    assert record.gives is not None
    assert (record.takes.content_type, record.takes.example) == ("application/json", {"values": [1, 2, 3]})
    assert record.gives.json_schema["required"] == ["sums"]
    with zipfile.ZipFile(tmp_path / "build/model.mar") as archive:
        assert json.loads(archive.read(record.sample.file)) == {"values": [1, 2, 3]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ('Form({"type": "array"})', "the answer to the sample does not fit its schema: `$`: {'sums': ["),
        ('Form({}, None, "text/plain")', "the sample was answered with `application/json`, declared: `text/plain`"),
    ],
)
def test_a_handler_that_answers_in_another_form_than_declared_is_not_packaged(
    gives: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"Sums\.gives") as raised:
        package(written(tmp_path, gives=gives), tmp_path / "build", progress=Progress(quiet=True))
    assert said in str(raised.value)
    assert not (tmp_path / "build/model.mar").exists()


@pytest.mark.slow
def test_what_the_sample_was_answered_with_is_packed_unless_it_is_another_each_time(tmp_path: Path) -> None:
    spec = written(tmp_path)
    record = package(spec, tmp_path / "build", progress=Progress(quiet=True)).record
    assert record.sample.answer
    with zipfile.ZipFile(tmp_path / "build" / "model.mar") as mar:
        assert len(json.loads(mar.read(record.sample.answer))["sums"]) == 2
    handler = tmp_path / "sums.py"
    chance = handler.read_text(encoding="utf-8").replace("outputs[0].tolist()", "np.random.rand(2).tolist()")
    handler.write_text(chance, encoding="utf-8")
    assert package(spec, tmp_path / "build", progress=Progress(quiet=True)).record.sample.answer is None
