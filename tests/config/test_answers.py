"""Whether a server's answer is the one that its package recorded."""

import io
import json
from typing import Any

import numpy as np
import pytest

from marina.config.answers import answers_match, as_recorded, can_record, settled_body


def npy(values: Any, kind: str = "float32") -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, kind))
    return file.getvalue()


def classes(*scores: float, names: tuple[int, ...] = (3, 2)) -> bytes:
    return json.dumps({"top_indices": names, "top_probs": scores}).encode()


def text(written: str, **more: Any) -> bytes:
    return json.dumps({"id": written, "choices": [{"text": written}], **more}).encode()


CHAT = json.dumps({"choices": [{"message": {"content": "Once upon a time"}}]}).encode()


@pytest.mark.parametrize(
    ("recorded", "answer", "same"),
    [
        pytest.param(classes(0.9, 0.05), classes(0.92, 0.03), True, id="nearly the same scores"),
        pytest.param(classes(0.9, 0.05), classes(0.7, 0.2), False, id="the same classes with other scores"),
        pytest.param(classes(0.9, 0.05), classes(0.9, 0.05, names=(4, 2)), False, id="another class"),
        pytest.param(classes(0.48, 0.47), classes(0.48, 0.47, names=(2, 3)), True, id="two that are as likely"),
        pytest.param(classes(0.9, 0.03), classes(0.9, 0.04, names=(3, 7)), True, id="another unlikely class"),
        pytest.param(classes(0.9, 0.05), b'{"top_indices": []}', False, id="no class"),
        pytest.param(text("Once upon a time, there"), text("Once upon a time a king"), True, id="one beginning"),
        pytest.param(text("Once upon a time"), text("One day, a girl"), False, id="another text"),
        pytest.param(CHAT, CHAT.replace(b"Once", b"Twice"), False, id="another message"),
        pytest.param(b'{"sums": [1.0, 2.0]}', b'{"sums": [1.01, 2.0]}', True, id="near"),
        pytest.param(b'{"sums": [1.0, 2.0]}', b'{"sums": [1.5, 2.0]}', False, id="not near"),
        pytest.param(npy([[1, 2]]), npy([[1.01, 2]]), True, id="a near array"),
        pytest.param(npy([[1, 2]]), npy([[1.01, 2]], "float64"), True, id="a near array of another type"),
        pytest.param(npy([[1, 2]]), npy([[1.5, 2]]), False, id="another array"),
        pytest.param(npy([[1, 2]]), npy([1, 2]), False, id="an array of another shape"),
        pytest.param(npy([[1, 2]]), npy([[1, 2]])[:-1], False, id="a cut array"),
        pytest.param(npy([[1, 2]]), b'{"sums": [1.0, 2.0]}', False, id="another form"),
        pytest.param(b"words", b"words", True, id="words"),
        pytest.param(b"words", b"others", False, id="other words"),
    ],
)
def test_an_answer_is_as_recorded_if_another_processor_may_compute_it(
    recorded: bytes, answer: bytes, same: bool
) -> None:
    assert as_recorded(recorded, answer) is same
    assert as_recorded(answer, recorded) is same


def test_arrays_match_within_the_tolerance() -> None:
    assert answers_match((200, npy([1, 2])), (200, npy([1.01, 2])), 0.05)
    assert not answers_match((200, npy([1, 2])), (200, npy([1.5, 2])), 0.05)


def test_only_what_is_more_than_bytes_can_be_recorded() -> None:
    assert can_record(npy([1.0]))
    assert can_record(b"[1]")
    assert not can_record(b"\x89PNG")
    assert not can_record(npy(["a"], "<U1"))


def test_a_settled_request_depends_on_no_chance() -> None:
    sample = b'{"prompt": "a", "stream": true, "stream_options": {"include_usage": true}, "temperature": 1}'
    assert json.loads(settled_body(sample)) == {"prompt": "a", "stream": False, "temperature": 0}
