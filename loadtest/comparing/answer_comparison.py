"""Whether two servers give the same answers to the package's sample and to the files of `model.calibration`."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gevent

from marina.config.errors import MarinaError
from marina.config.record import TOLERANCE
from marina.config.spec import Spec
from marina.loadtest.comparing.comparison import AnswerCounts
from marina.loadtest.sending import Body, BrokenAnswer, Client, LoadRequest, content_type_of

_MOST_INPUTS, _MOST_NAMED = 200, 5
_TIMEOUT_S = 60.0

StatusAndBody = tuple[int, bytes]


def compare_answers(old: LoadRequest, new: LoadRequest, spec: Spec) -> AnswerCounts:
    """Sends each input to both servers; if both refuse it with the same status, that counts as the same answer."""
    inputs = dict(_inputs(new, spec))
    all_inputs = {"bodies": tuple(inputs.values())}
    old, new = old.model_copy(update=all_inputs), new.model_copy(update=all_inputs)
    with closing(Client(old)) as to_old, closing(Client(new)) as to_new:
        differing = [
            name
            for number, name in enumerate(inputs)
            if not answers_match(_ask(to_old, old, number), _ask(to_new, new, number), TOLERANCE)
        ]
    same = len(inputs) - len(differing)
    return AnswerCounts(inputs=len(inputs), same=same, differing=tuple(differing[:_MOST_NAMED]))


def answers_match(old: StatusAndBody, new: StatusAndBody, tolerance: float) -> bool:
    """Whether two answers mean the same: the same top class or text, or outputs within the tolerance, or equal data."""
    if old == new or old[0] != new[0] or old[0] >= 300:
        return old[0] == new[0]
    try:
        before, after = json.loads(old[1]), json.loads(new[1])
    except (ValueError, RecursionError):
        return False
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(before.get("top_indices"), list):
        top = after.get("top_indices")
        return isinstance(top, list) and bool(before["top_indices"][:1] == top[:1])
    if isinstance(before, dict) and isinstance(after, dict) and "choices" in before:
        # A language model's answers also have a name and a time of their own.
        before, after = before["choices"], after.get("choices")
    return _near(before, after, tolerance)


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


def _inputs(request: LoadRequest, spec: Spec) -> Iterator[tuple[str, Body]]:
    """The names and bodies of all inputs: the sample, and files of `model.calibration` if they are here."""
    sample = request.body
    if spec.model.writes:
        # Not streamed, and the likeliest text, because any other depends on chance.
        fields = {name: value for name, value in json.loads(sample).items() if name != "stream_options"}
        sample = json.dumps(fields | {"stream": False, "temperature": 0}).encode()
    yield "the sample", Body.model_construct(body=sample, content_type=request.content_type)
    if spec.model.calibration is None:
        return
    folder = spec.path(spec.model.calibration)
    files = ((file, content_type_of(file)) for file in sorted(folder.rglob("*")) if file.is_file())
    known = [(file, content_type) for file, content_type in files if content_type]
    for file, content_type in known[:_MOST_INPUTS]:
        yield str(file.relative_to(folder)), Body.model_construct(body=file.read_bytes(), content_type=content_type)


def _ask(client: Client, request: LoadRequest, number: int) -> StatusAndBody:
    try:
        with gevent.Timeout(_TIMEOUT_S, TimeoutError(f"not within {_TIMEOUT_S:g} s")):
            answer = client.send(number)
    except (OSError, BrokenAnswer) as err:
        raise MarinaError(f"{request.url}: no answer to an input that both servers get: {err or type(err)}") from err
    return answer.status, answer.body
