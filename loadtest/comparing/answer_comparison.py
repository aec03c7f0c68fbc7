"""Whether two servers give the same answers to the package's sample and to the files of `model.calibration`."""

from collections.abc import Iterator
from contextlib import closing

import gevent

from marina.config.answers import StatusAndBody, answers_match, settled_body
from marina.config.errors import MarinaError
from marina.config.record import TOLERANCE
from marina.config.spec import Spec
from marina.loadtest.comparing.comparison import AnswerCounts
from marina.loadtest.sending import Body, BrokenAnswer, Client, LoadRequest, content_type_of

_MOST_INPUTS, _MOST_NAMED = 200, 5
_TIMEOUT_S = 60.0


def compare_answers(old: LoadRequest, new: LoadRequest, spec: Spec) -> AnswerCounts:
    """Sends each input to both servers; if both refuse it with the same status, that counts as the same answer."""
    inputs = dict(inputs_of(new, spec))
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


def inputs_of(request: LoadRequest, spec: Spec) -> Iterator[tuple[str, Body]]:
    """The names and bodies of all inputs: the sample, and files of `model.calibration` if they are here."""
    sample = request.body
    if spec.model.writes:
        sample = settled_body(sample)
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
