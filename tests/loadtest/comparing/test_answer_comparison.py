"""Which inputs two servers are asked, and what their answers say."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from json_server import answering

from marina.config.load import parse_spec
from marina.config.spec import Spec
from marina.loadtest.comparing.answer_comparison import compare_answers
from marina.loadtest.comparing.comparison import AnswerCounts
from marina.loadtest.sending import LoadRequest

Answer = Callable[[bytes, str], object]
"""What is answered to a body and its content type; None refuses it."""


@contextmanager
def serving(answer: Answer) -> Iterator[LoadRequest]:
    def post(_: str, body: bytes, kind: str) -> tuple[int, Any]:
        data = answer(body, kind)
        return (422 if data is None else 200), data

    with answering(lambda _: None, post) as port:
        sample = base64.b64encode(b'{"x": 1}')
        yield LoadRequest(url=f"http://127.0.0.1:{port}/predictions/m", body=sample, content_type="application/json")


def compared(spec: Spec, old: Answer, new: Answer) -> AnswerCounts:
    with ExitStack() as stack:
        return compare_answers(stack.enter_context(serving(old)), stack.enter_context(serving(new)), spec)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "calibration").mkdir()
    model = {"source": "./m.py:build", "weights": "random", "handler": "tensor", "calibration": "./calibration"}
    model |= {"inputs": {"x": {"shape": [4]}}}
    return parse_spec(yaml.safe_dump({"name": "m", "model": model}), tmp_path / "spec.yaml", files=False)


def top_of(sign: int) -> Answer:
    """Answers arrays of one row with the place of the largest, or of the smallest; JSON always with the same."""

    def answer(body: bytes, kind: str) -> object:
        if kind == "application/json":
            return {"top_indices": [0]}
        array = np.load(BytesIO(body))
        return {"top_indices": [int(np.argmax(sign * array))]} if array.shape == (4,) else None

    return answer


def test_each_row_of_an_array_is_an_input(spec: Spec) -> None:
    np.save(spec.path("calibration") / "train.npy", np.arange(80, dtype="float32").reshape(20, 4))
    counts = compared(spec, top_of(1), top_of(-1))
    # The sample, and twenty rows; the whole array says nothing, as both refuse it.
    assert (counts.inputs, counts.same) == (21, 1)
    assert counts.differing[0] == "train.npy row 1"
    assert compared(spec, top_of(1), top_of(1)).same == 21


def test_a_file_with_one_row_is_one_input(spec: Spec) -> None:
    np.save(spec.path("calibration") / "one.npy", np.arange(4, dtype="float32"))
    counts = compared(spec, top_of(1), top_of(-1))
    assert (counts.inputs, counts.same, counts.differing) == (2, 1, ("one.npy",))


@pytest.mark.parametrize("kind", ["npz", "txt"])
def test_named_columns_and_texts_are_inputs_too(spec: Spec, kind: str) -> None:
    if kind == "npz":
        np.savez(spec.path("calibration") / "rows.npz", x=np.ones((3, 2)), y=np.zeros(3))
    else:
        (spec.path("calibration") / "rows.txt").write_text("one\n\ntwo\nthree\n")
    seen: list[object] = []

    def answer(body: bytes, _: str) -> object:
        seen.append(json.loads(body))
        return {"same": True}

    assert compared(spec, lambda *_: {"same": True}, answer).inputs == 4
    rows = [{"x": [1.0, 1.0], "y": 0.0}] * 3 if kind == "npz" else [{"text": word} for word in ("one", "two", "three")]
    assert seen == [{"x": 1}, *rows]


def test_a_refusal_by_one_alone_is_another_answer(spec: Spec) -> None:
    np.save(spec.path("calibration") / "train.npy", np.ones((2, 4), dtype="float32"))
    counts = compared(spec, top_of(1), lambda *_: None)
    assert (counts.inputs, counts.same) == (3, 0)


def test_what_cannot_be_read_is_left_to_packaging(spec: Spec) -> None:
    (spec.path("calibration") / "bad.npz").write_bytes(b"no archive")
    assert compared(spec, top_of(1), top_of(1)).inputs == 1
