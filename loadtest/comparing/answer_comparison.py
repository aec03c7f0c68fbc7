"""Whether two servers give the same answers to the package's sample and to the files of `model.calibration`."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from config.errors import MarinaError
from config.request_headers import UNCACHED
from config.spec import Spec
from loadtest.comparing.comparison import AnswerCounts
from loadtest.sending import LoadRequest, content_type_of

_MOST_INPUTS, _MOST_NAMED = 200, 5
_TIMEOUT_S = 60.0

StatusAndBody = tuple[int, bytes]


def compare_answers(old: LoadRequest, new: LoadRequest, spec: Spec) -> AnswerCounts:
    """Sends each input to both servers; if both refuse it with the same status, that counts as the same answer."""
    differing, inputs = [], 0
    with closing(_connection(old)) as to_old, closing(_connection(new)) as to_new:
        for name, body, content_type in _inputs(new, spec):
            inputs += 1
            before, after = _ask(to_old, old, body, content_type), _ask(to_new, new, body, content_type)
            if not answers_match(before, after, spec.model.tolerance):
                differing.append(name)
    return AnswerCounts(inputs=inputs, same=inputs - len(differing), differing=tuple(differing[:_MOST_NAMED]))


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


def _inputs(request: LoadRequest, spec: Spec) -> Iterator[tuple[str, bytes, str]]:
    """The name, body and content type of each input: the sample, and files of `model.calibration` if they are here."""
    sample = request.body
    if spec.model.writes:
        # Not streamed, and the likeliest text, because any other depends on chance.
        fields = {name: value for name, value in json.loads(sample).items() if name != "stream_options"}
        sample = json.dumps(fields | {"stream": False, "temperature": 0}).encode()
    yield "the sample", sample, request.content_type
    folder = spec.path(spec.model.calibration) if spec.model.calibration else None
    files = sorted(folder.rglob("*")) if folder and folder.is_dir() else []
    known = [(file, content_type) for file in files if file.is_file() and (content_type := content_type_of(file))]
    for file, content_type in known[:_MOST_INPUTS]:
        yield file.name, file.read_bytes(), content_type


def _connection(request: LoadRequest) -> http.client.HTTPConnection:
    host, port = request.address
    kind = http.client.HTTPSConnection if request.tls else http.client.HTTPConnection
    return kind(host, port, timeout=_TIMEOUT_S)


def _ask(connection: http.client.HTTPConnection, request: LoadRequest, body: bytes, content_type: str) -> StatusAndBody:
    headers = UNCACHED | {"Content-Type": content_type, "Accept": "application/json"}
    try:
        connection.request("POST", request.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as err:
        raise MarinaError(f"{request.url}: no answer to an input that both servers get: {err or type(err)}") from err
