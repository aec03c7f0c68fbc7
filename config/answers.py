"""Whether two answers to the same request mean the same: those of two versions, or a server's and the one that its
package recorded. No I/O, and no numpy, because `deploy` runs without it."""

import ast
import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from marina.config.record import TOLERANCE

StatusAndBody = tuple[int, bytes]

# How many characters of a written text are certain: later, two tokens may be so nearly as likely as each other that
# another processor takes the other one.
_CERTAIN_TEXT = 16
_NPY = b"\x93NUMPY"
_FORMATS = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "b1": "?"}


def settled_body(sample: bytes) -> bytes:
    """A language model's sample as a request whose answer does not depend on chance, and is not streamed."""
    fields = {name: value for name, value in json.loads(sample).items() if name != "stream_options"}
    return json.dumps(fields | {"stream": False, "temperature": 0}).encode()


def can_record(answer: bytes) -> bool:
    """Whether `as_recorded` can compare this answer by more than its bytes."""
    return parsed(answer) is not None or _array(answer) is not None


def lasting_part(answer: bytes) -> bytes:
    """What of an answer is the same each time: a language model's also has a name and a time of its own, with which no
    two packages would be equal."""
    data = parsed(answer)
    if isinstance(data, dict) and isinstance(data.get("choices"), list):
        return json.dumps({"choices": data["choices"]}, ensure_ascii=False).encode()
    return answer


def answers_match(old: StatusAndBody, new: StatusAndBody, tolerance: float) -> bool:
    """Whether two answers mean the same: the same top class or text, or outputs within the tolerance, or equal data."""
    if old == new or old[0] != new[0] or old[0] >= 300:
        return old[0] == new[0]
    before, after = parsed(old[1]), parsed(new[1])
    if before is None or after is None:
        return _arrays_match(old[1], new[1], tolerance)
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(before.get("top_indices"), list):
        top = after.get("top_indices")
        return isinstance(top, list) and bool(before["top_indices"][:1] == top[:1])
    if isinstance(before, dict) and isinstance(after, dict) and "choices" in before:
        # A language model's answers also have a name and a time of their own.
        before, after = before["choices"], after.get("choices")
    return _near(before, after, tolerance)


def as_recorded(recorded: bytes, answer: bytes) -> bool:
    """Whether an answer is the one that the package recorded, as well as another processor computes it: the same
    classes with the same scores, within the tolerance, or the same beginning of a text, or outputs within the
    tolerance."""
    if recorded == answer:
        return True
    before, after = parsed(recorded), parsed(answer)
    if isinstance(before, dict) and isinstance(after, dict):
        if classes := _classes(before):
            return _scores_match(classes, _classes(after), TOLERANCE)
        if texts := _texts(before):
            return texts == _texts(after)
    if before is None or after is None:
        return _arrays_match(recorded, answer, TOLERANCE)
    return _near(before, after, TOLERANCE)


def parsed(body: bytes) -> Any:
    """A body as JSON; None if it is not."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _classes(answer: dict[str, Any]) -> dict[Any, float]:
    """The score of each class that an answer names."""
    names, scores = answer.get("top_indices"), answer.get("top_probs")
    if isinstance(names, list) and isinstance(scores, list) and len(names) == len(scores):
        return dict(zip(names, scores, strict=True))
    return {}


def _scores_match(old: dict[Any, float], new: dict[Any, float], tolerance: float) -> bool:
    """Whether each class has the same score. One that is not named has at most the least score that is."""

    def within(one: dict[Any, float], other: dict[Any, float]) -> bool:
        least = min(other.values())
        return all(
            abs(score - other[name]) <= tolerance if name in other else score <= least + tolerance
            for name, score in one.items()
        )

    return bool(new) and within(old, new) and within(new, old)


def _texts(answer: dict[str, Any]) -> list[str]:
    """The certain beginning of each text that a language model wrote."""
    choices = answer.get("choices")
    named = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    texts = (each.get("text") or (each.get("message") or {}).get("content") for each in named)
    return [str(text)[:_CERTAIN_TEXT] for text in texts]


def _near(old: Any, new: Any, tolerance: float) -> bool:
    """Whether two values have the same form, and their numbers differ by at most this share of the largest nearby."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_near(old[key], new[key], tolerance) for key in old)
    pairs = list(_pairs(old, new))
    largest = max((abs(before) for before, _ in pairs if isinstance(before, int | float)), default=0.0)
    return all(
        abs(before - after) <= tolerance * largest
        if isinstance(before, int | float) and isinstance(after, int | float)
        else _near(before, after, tolerance)
        if isinstance(before, dict) and isinstance(after, dict)
        else before == after
        for before, after in pairs
    )


def _pairs(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """The values of two lists, and of the lists in them, side by side."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _pairs(before, after)
    else:
        yield old, new


def _arrays_match(old: bytes, new: bytes, tolerance: float) -> bool:
    before, after = _array(old), _array(new)
    return before is not None and after is not None and _near(before, after, tolerance)


def _array(body: bytes) -> list[Sequence[float]] | None:
    """The shape and the values of an `.npy` file; None if it is none, or of a type that is not a number's."""
    if not body.startswith(_NPY):
        return None
    wide = body[len(_NPY)] > 1
    try:
        (length,) = struct.unpack_from("<I" if wide else "<H", body, 8)
        start = (12 if wide else 10) + length
        header = ast.literal_eval(body[start - length : start].decode("latin-1"))
        code, shape = _FORMATS[header["descr"][1:]], header["shape"]
        values = struct.unpack_from(f"<{math.prod(shape)}{code}", body, start)
    except (IndexError, KeyError, SyntaxError, TypeError, ValueError, struct.error):
        return None
    return [list(shape), list(values)]
