"""Whether two servers give the same answers to the package's sample and to the files of `model.calibration`."""

import json
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from itertools import islice
from pathlib import Path

import gevent

from marina.config.answers import StatusAndBody, answers_match, settled_body
from marina.config.errors import MarinaError
from marina.config.record import TOLERANCE
from marina.config.request_headers import CONTENT_TYPES
from marina.config.spec import Spec
from marina.loadtest.comparing.comparison import AnswerCounts
from marina.loadtest.sending import Body, BrokenAnswer, Client, LoadRequest, content_type_of

_MOST_INPUTS, _MOST_NAMED = 200, 5
_TIMEOUT_S = 60.0


def compare_answers(old: LoadRequest, new: LoadRequest, spec: Spec) -> AnswerCounts:
    """Sends each input to both servers. What both refuse with the same status says nothing about their answers, and is
    not counted; if they refuse everything, that is the same answer."""
    inputs = dict(inputs_of(new, spec))
    all_inputs = {"bodies": tuple(inputs.values())}
    old, new = old.model_copy(update=all_inputs), new.model_copy(update=all_inputs)
    with closing(Client(old)) as to_old, closing(Client(new)) as to_new:
        answers = {name: (_ask(to_old, old, number), _ask(to_new, new, number)) for number, name in enumerate(inputs)}
    answered = {name: pair for name, pair in answers.items() if min(status for status, _ in pair) < 300} or answers
    differing = [name for name, pair in answered.items() if not answers_match(*pair, TOLERANCE)]
    same = len(answered) - len(differing)
    return AnswerCounts(inputs=len(answered), same=same, differing=tuple(differing[:_MOST_NAMED]))


def inputs_of(request: LoadRequest, spec: Spec) -> Iterator[tuple[str, Body]]:
    """The names and bodies of all inputs: the sample, and of `model.calibration`, if it is here, the files and the rows
    in them."""
    sample = request.body
    if spec.model.writes:
        sample = settled_body(sample)
    yield "the sample", Body.model_construct(body=sample, content_type=request.content_type)
    if spec.model.calibration is None:
        return
    folder = spec.path(spec.model.calibration)
    bodies = (
        (f"{file.relative_to(folder)}{f' row {number}' if number else ''}", body)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        for number, body in enumerate(_bodies(file))
    )
    yield from islice(bodies, _MOST_INPUTS)


def _bodies(file: Path) -> Iterator[Body]:
    """A file as it is, and the rows of a file that may hold several: a server refuses either the one or the others."""
    if content_type := content_type_of(file):
        yield Body.model_construct(body=file.read_bytes(), content_type=content_type)
    ending = file.suffix.lower()
    for row in _rows(file, ending):
        yield Body.model_construct(body=row, content_type=CONTENT_TYPES[".npy" if ending == ".npy" else ".json"])


def _rows(file: Path, ending: str) -> Iterator[bytes]:
    """The body of each row in an array, in several arrays by name, or in a list of texts."""
    # The image that sends load has none.
    import numpy as np

    try:
        if ending == ".npy":
            for row in np.atleast_1d(np.load(file, mmap_mode="r")):
                stream = BytesIO()
                np.save(stream, row)
                yield stream.getvalue()
        elif ending == ".npz":
            with np.load(file) as arrays:
                columns = {name: np.atleast_1d(arrays[name]) for name in arrays}
            for values in zip(*columns.values(), strict=False):
                yield json.dumps({name: value.tolist() for name, value in zip(columns, values, strict=True)}).encode()
        elif ending == ".txt":
            for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
                yield json.dumps({"text": line}).encode()
    except (OSError, ValueError):
        # Packaging reads these files, and says what is wrong with them.
        return


def _ask(client: Client, request: LoadRequest, number: int) -> StatusAndBody:
    try:
        with gevent.Timeout(_TIMEOUT_S, TimeoutError(f"not within {_TIMEOUT_S:g} s")):
            answer = client.send(number)
    except (OSError, BrokenAnswer) as err:
        raise MarinaError(f"{request.url}: no answer to an input that both servers get: {err or type(err)}") from err
    return answer.status, answer.body
