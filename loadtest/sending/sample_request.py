"""The request with the sample of a package or spec, and the structure of a good answer to it."""

import base64
from pathlib import Path

from marina.config.errors import InputError, as_input_error
from marina.config.mar import open_mar
from marina.config.record import Package, Record
from marina.config.request_headers import CONTENT_TYPES
from marina.config.spec import Spec
from marina.loadtest.sending.plan import Expected, LoadRequest

# Keys of a language model's answer that is not streamed.
_WRITTEN = ("choices", "usage")


def packaged_request(package: Package, folder: Path, url: str) -> LoadRequest:
    """The request with the sample inside the MAR of a build folder, for the model's prediction path."""
    record, mar = package.record, folder / package.mar
    with open_mar(mar) as archive:
        body = archive.read(record.sample.file)
    return _request(url, record.name, body, record.sample.content_type, expected_of(record))


def spec_request(spec: Spec, url: str) -> LoadRequest:
    """The request with the sample that the spec names, for a server whose package is not here."""
    if spec.load.sample is None:
        text = f"{spec.file}: `load.sample`: missing, and without a package there is no other sample to send"
        raise InputError(text, hint=f"marina package {spec.file}")
    file = spec.path(spec.load.sample)
    kind = content_type_of(file)
    if kind is None:
        allowed = ", ".join(f"`{suffix}`" for suffix in sorted(CONTENT_TYPES))
        raise InputError(
            f"{spec.file}: `load.sample`: got `{spec.load.sample}`, allowed: a file that ends in {allowed}"
        )
    with as_input_error(f"{spec.file}: `load.sample`: {file} cannot be read"):
        body = file.read_bytes()
    return _request(url, spec.name, body, kind, expected_without_package(spec))


def expected_without_package(spec: Spec) -> Expected:
    """The structure of the answers as far as the spec alone tells it."""
    keys = {"image": ("top_indices", "top_probs"), "text": _WRITTEN}.get(spec.model.handler, ())
    return Expected(form="json" if keys else "any", keys=keys)


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


def _request(url: str, name: str, body: bytes, content_type: str, expected: Expected) -> LoadRequest:
    return LoadRequest(
        url=f"{url.rstrip('/')}/predictions/{name}",
        body=base64.b64encode(body),
        content_type=content_type,
        expected=expected,
    )
