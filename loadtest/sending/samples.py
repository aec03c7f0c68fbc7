"""Several bodies instead of one: those that a trace or `load.samples` names, sent as often as that says."""

from __future__ import annotations

import base64
from pathlib import Path

from config.errors import InputError, listed
from config.record import Record
from config.spec import Spec
from loadtest.scheduling import Trace
from loadtest.sending.plan import Body, Request
from loadtest.sending.sample import CONTENT_TYPES, expected_of, expected_without_package


def with_samples(request: Request, spec: Spec, record: Record | None, trace: Trace | None = None) -> Request:
    """The request with the bodies of a trace, or of `load.samples`; as it is, where neither names any."""
    weights = {Path(name): 1.0 for name in trace.samples} if trace and trace.samples else _weights(spec)
    if not weights:
        return request
    bodies = tuple(_body(spec, file, weight, record) for file, weight in weights.items())
    return request.model_copy(update={"bodies": bodies})


def _weights(spec: Spec) -> dict[Path, float]:
    """Each file and its weight; that of a folder is shared by its files."""
    weights: dict[Path, float] = {}
    for name, weight in (spec.load.samples or {}).items():
        files = _files(spec, spec.path(name))
        weights |= {file: weights.get(file, 0.0) + weight / len(files) for file in files}
    return weights


def _files(spec: Spec, place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(file for file in place.iterdir() if file.suffix.lower() in CONTENT_TYPES)
    if not found:
        allowed = listed(sorted(CONTENT_TYPES))
        raise InputError(f"{spec.file}: `load.samples`: {place} holds no file that ends in {allowed}")
    return found


def _body(spec: Spec, file: Path, weight: float, record: Record | None) -> Body:
    kind = CONTENT_TYPES.get(file.suffix.lower())
    if kind is None:
        allowed = listed(sorted(CONTENT_TYPES))
        raise InputError(f"{spec.file}: `load.samples`: got `{file.name}`, allowed: files that end in {allowed}")
    try:
        body = file.read_bytes()
    except OSError as err:
        raise InputError(f"{spec.file}: `load.samples`: {file} cannot be read: {err.strerror}") from err
    expected = expected_of(record, kind) if record else expected_without_package(spec)
    return Body(body=base64.b64encode(body), content_type=kind, expected=expected, weight=weight)
