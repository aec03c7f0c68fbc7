"""Several bodies instead of one: those that a trace or `load.samples` names, each sent as often as that says.

The answers of a language model are streamed."""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from marina.config.errors import InputError, as_input_error, listed
from marina.config.record import Record
from marina.config.request_headers import CONTENT_TYPES
from marina.config.spec import Spec
from marina.loadtest.scheduling import Trace
from marina.loadtest.sending.plan import Body, Expected, LoadRequest
from marina.loadtest.sending.sample_request import expected_of, expected_without_package

_LINES = ".jsonl"
_ENDINGS = sorted([*CONTENT_TYPES, _LINES])


def with_samples(request: LoadRequest, spec: Spec, record: Record | None, trace: Trace | None = None) -> LoadRequest:
    """The request with the bodies of a trace or of `load.samples`; unchanged if there are none.

    The bodies of a language model ask for streamed answers."""
    traced = bool(trace and trace.samples)
    weights = {Path(name): 1.0 for name in trace.samples} if trace and traced else _weights(spec)
    bodies = tuple(body for file, weight in weights.items() for body in _bodies(spec, file, weight, record))
    if spec.model.writes:
        bodies = tuple(_streamed(bodies or request.all_bodies, spec))
    return request.model_copy(update={"bodies": bodies}) if bodies else request


def _weights(spec: Spec) -> dict[Path, float]:
    """Each file with its weight; the files of a folder share its weight."""
    weights: dict[Path, float] = {}
    for name, weight in (spec.load.samples or {}).items():
        files = _files(spec, spec.path(name))
        weights |= {file: weights.get(file, 0.0) + weight / len(files) for file in files}
    return weights


def _files(spec: Spec, place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in _ENDINGS)
    if not files:
        allowed = listed(_ENDINGS)
        raise InputError(f"{spec.file}: `load.samples`: {place} holds no file that ends in {allowed}")
    return files


def _bodies(spec: Spec, file: Path, weight: float, record: Record | None) -> list[Body]:
    """A file as one body; of a `.jsonl`, each line as a body."""
    ending = file.suffix.lower()
    if ending not in _ENDINGS:
        allowed = listed(_ENDINGS)
        raise InputError(f"{spec.file}: `load.samples`: got `{file.name}`, allowed: files that end in {allowed}")
    with as_input_error(f"{spec.file}: `load.samples`: {file} cannot be read"):
        data = file.read_bytes()
    kind = CONTENT_TYPES[".json" if ending == _LINES else ending]
    texts = [line for line in data.splitlines() if line.strip()] if ending == _LINES else [data]
    if not texts:
        raise InputError(f"{spec.file}: `load.samples`: {file} is empty, allowed: one body on each line")
    expected = expected_of(record, kind) if record else expected_without_package(spec)
    return [
        Body(body=base64.b64encode(text), content_type=kind, expected=expected, weight=weight / len(texts))
        for text in texts
    ]


def _streamed(bodies: Iterable[Body], spec: Spec) -> Iterator[Body]:
    """Each body as a stream, unless it has `"stream": false`."""
    for body in bodies:
        try:
            fields = json.loads(body.body)
            is_whole = fields.get("stream") is False
        except (ValueError, AttributeError) as err:
            raise InputError(f"{spec.file}: `load.samples`: a language model takes JSON objects: {err}") from err
        if not is_whole:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        expected = body.expected if is_whole else Expected(form="events")
        text = base64.b64encode(json.dumps(fields).encode())
        yield Body(body=text, content_type=body.content_type, expected=expected, weight=body.weight)
