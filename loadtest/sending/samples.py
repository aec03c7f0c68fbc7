"""What a load sends: the sample of a package or spec, or the bodies that a trace or `load.samples` names, each as often
as that says; and the structure of good answers.

The answers of a language model are streamed."""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from marina.config.errors import InputError, as_input_error, listed
from marina.config.mar import open_mar
from marina.config.record import Package, Record
from marina.config.request_headers import CONTENT_TYPES
from marina.config.spec import Spec
from marina.loadtest.scheduling import Trace
from marina.loadtest.sending.plan import Body, Expected, LoadRequest

_LINES = ".jsonl"
_ENDINGS = sorted([*CONTENT_TYPES, _LINES])
# Keys of a language model's answer that is not streamed.
_WRITTEN = ("choices", "usage")


def packaged_request(package: Package, folder: Path, url: str) -> LoadRequest:
    """The request with the sample inside the MAR of a build folder, for the model's prediction path."""
    record = package.record
    with open_mar(folder / package.mar) as archive:
        body = archive.read(record.sample.file)
    return _request(url, record.url_name, body, record.sample.content_type, expected_of(record))


def spec_request(spec: Spec, url: str) -> LoadRequest:
    """The request with the sample that the spec names, for a server whose package is not here."""
    if spec.load.sample is None:
        text = f"{spec.file}: `load.sample`: missing, and without a package there is no other sample to send"
        raise InputError(text, hint=f"marina package {spec.file}")
    file = spec.path(spec.load.sample)
    kind = spec.sample_type
    if kind is None:
        allowed = ", ".join(f"`{suffix}`" for suffix in sorted(CONTENT_TYPES))
        text = f"{spec.file}: `load.sample`: got `{spec.load.sample}`, allowed: a file that ends in {allowed}"
        raise InputError(text)
    with as_input_error(f"{spec.file}: `load.sample`: {file} cannot be read"):
        body = file.read_bytes()
    return _request(url, spec.url_name, body, kind, _expected_without_package(spec))


def _request(url: str, name: str, body: bytes, content_type: str, expected: Expected) -> LoadRequest:
    url = f"{url.rstrip('/')}/predictions/{name}"
    return LoadRequest(url=url, body=base64.b64encode(body), content_type=content_type, expected=expected)


def content_type_of(file: Path) -> str | None:
    """The content type of a file; None if no model accepts such files."""
    return CONTENT_TYPES.get(file.suffix.lower())


def expected_of(record: Record, content_type: str | None = None) -> Expected:
    """The structure of a package's answers to bodies of a content type, by default that of its sample.

    Nothing is known about the answers of a user's own handler."""
    if record.handler == "image":
        labels = ("top_labels",) if record.labels else ()
        return Expected(form="json", keys=("top_indices", "top_probs", *labels))
    if record.text is not None:
        return Expected(form="json", keys=_WRITTEN)
    if record.handler == "tensor":
        if (content_type or record.sample.content_type) == CONTENT_TYPES[".npy"]:
            return Expected(form="npy")
        return Expected(form="json", keys=tuple(port.name for port in record.outputs))
    return Expected()


def _expected_without_package(spec: Spec) -> Expected:
    """The structure of the answers as far as the spec alone tells it."""
    keys = {"image": ("top_indices", "top_probs"), "text": _WRITTEN}.get(spec.model.handler, ())
    return Expected(form="json" if keys else "any", keys=keys)


def with_samples(request: LoadRequest, spec: Spec, record: Record | None, trace: Trace | None = None) -> LoadRequest:
    """The request with the bodies of a trace or of `load.samples`; unchanged if there are none.

    The bodies of a language model ask for streamed answers."""
    weights = {Path(name): 1.0 for name in trace.samples} if trace and trace.samples else _weights(spec)
    bodies = tuple(body for file, weight in weights.items() for body in _bodies(spec, file, weight, record))
    if spec.model.writes:
        bodies = tuple(_streamed(bodies or request.all_bodies, spec))
    return request.model_copy(update={"bodies": bodies}) if bodies else request


def _weights(spec: Spec) -> dict[Path, float]:
    """Each file with its weight; the files of a folder share its weight."""
    weights: dict[Path, float] = {}
    for name, weight in (spec.load.samples or {}).items():
        place = spec.path(name)
        files = [place]
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.suffix.lower() in _ENDINGS)
        if not files:
            text = f"{spec.file}: `load.samples`: {place} holds no file that ends in {listed(_ENDINGS)}"
            raise InputError(text)
        weights |= {file: weights.get(file, 0.0) + weight / len(files) for file in files}
    return weights


def _bodies(spec: Spec, file: Path, weight: float, record: Record | None) -> list[Body]:
    """A file as one body; of a `.jsonl`, each line as a body."""
    ending = file.suffix.lower()
    if ending not in _ENDINGS:
        text = f"{spec.file}: `load.samples`: got `{file.name}`, allowed: files that end in {listed(_ENDINGS)}"
        raise InputError(text)
    with as_input_error(f"{spec.file}: `load.samples`: {file} cannot be read"):
        data = file.read_bytes()
    kind = CONTENT_TYPES[".json" if ending == _LINES else ending]
    texts = [line for line in data.splitlines() if line.strip()] if ending == _LINES else [data]
    if not texts:
        raise InputError(f"{spec.file}: `load.samples`: {file} is empty, allowed: one body on each line")
    expected = expected_of(record, kind) if record else _expected_without_package(spec)
    each = weight / len(texts)
    return [Body(body=base64.b64encode(text), content_type=kind, expected=expected, weight=each) for text in texts]


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
