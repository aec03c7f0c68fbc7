"""Checks the forms `takes` and `gives` that an own handler declares: that their schemas are JSON Schema, and that their
examples and the answer to the sample fit, so that `/docs` and `/openapi.json` are right."""

import json
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from referencing.exceptions import Unresolvable

from marina.archiver.user_code import import_file
from marina.config.errors import SourceError, listed, nearest
from marina.config.record import BodyFormat
from marina.config.spec import Spec
from marina.handlers.base import Handler
from marina.handlers.detection import DetectionHandler
from marina.handlers.request import JSON
from marina.handlers.request import Form as Declared
from marina.handlers.segmentation import SegmentationHandler

_HINT = 'Form({"type": "object"}, {"text": "an example"}), with `from marina.handlers import Form`'


def declared_forms(spec: Spec) -> tuple[BodyFormat | None, BodyFormat | None]:
    """The `takes` and `gives` of the spec's own handler, each None if not declared; SourceError if one is wrong."""
    if built_in := {"detect": DetectionHandler, "segment": SegmentationHandler}.get(str(spec.model.task)):
        return None, _checked("", built_in.gives)
    if not spec.model.handler.partition(":")[0].endswith(".py"):
        return None, None
    handler = _load_own_handler(spec)
    return _checked(f"{_where(spec)}.takes`", handler.takes), _checked(f"{_where(spec)}.gives`", handler.gives)


def example_body(takes: BodyFormat) -> bytes:
    """The declared example, encoded as the body of a request."""
    return json.dumps(takes.example).encode() if takes.content_type == JSON else str(takes.example).encode()


def check_answer(spec: Spec, gives: BodyFormat, content_type: str, body: bytes) -> None:
    """Raises SourceError unless the answer to the sample is of the form that the handler declares."""
    where = f"{_where(spec)}.gives`"
    if content_type.partition(";")[0].strip() != gives.content_type:
        raise SourceError(f"{where}: the sample was answered with `{content_type}`, declared: `{gives.content_type}`")
    if gives.content_type == JSON:
        try:
            answer = json.loads(body)
        except ValueError as err:
            raise SourceError(f"{where}: the answer to the sample is not JSON: {err}") from err
        _check_fits(f"{where}: the answer to the sample", answer, gives.json_schema)


def _load_own_handler(spec: Spec) -> type[Handler]:
    """The class that the spec names as its handler; SourceError if it is missing or not a handler."""
    where = f"{spec.file}: `model.handler`"
    text, _, name = spec.model.handler.partition(":")
    file = spec.path(text)
    loaded = import_file(spec, file, "model.handler")
    handler = getattr(loaded, name, None)
    if handler is None:
        classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
        close = nearest(name, classes)
        raise SourceError(
            f"{where}: `{file}` has no class `{name}`, found: {listed(classes) or 'none'}",
            hint=f"handler: {file.name}:{close}" if close else None,
        )
    if not (isinstance(handler, type) and issubclass(handler, Handler)):
        raise SourceError(
            f"{where}: `{name}` is not a handler",
            hint=f"class {name}(TensorHandler): …, with `from marina.handlers import TensorHandler`",
        )
    return handler


def _where(spec: Spec) -> str:
    return f"{spec.file}: `{spec.model.handler.partition(':')[2]}"


def _checked(where: str, form: object) -> BodyFormat | None:
    """The form as the record has it."""
    if form is None:
        return None
    if not isinstance(form, Declared):
        raise SourceError(f"{where}: got `{type(form).__name__}`, allowed: a `Form`", hint=_HINT)
    try:
        schema = json.loads(json.dumps(dict(form.schema)))
        example = json.loads(json.dumps(form.example))
        Draft202012Validator.check_schema(schema)
    except (TypeError, ValueError) as err:
        raise SourceError(f"{where}: is not JSON: {err}") from err
    except SchemaError as err:
        raise SourceError(f"{where}: `{err.json_path}` is not a JSON schema: {err.message}") from err
    if form.content_type != JSON and not isinstance(example, str | None):
        raise SourceError(
            f"{where}: its example is `{type(example).__name__}`, allowed for `{form.content_type}`: a text"
        )
    if form.content_type == JSON and example is not None:
        _check_fits(f"{where}: its example", example, schema)
    return BodyFormat(content_type=form.content_type, json_schema=schema, example=example)


def _check_fits(subject: str, value: Any, schema: dict[str, Any]) -> None:
    try:
        errors = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: error.json_path)
    except (Unresolvable, RecursionError) as err:
        raise SourceError(f"{subject} cannot be compared with its schema, because of a `$ref` in it: {err}") from err
    if errors:
        raise SourceError(f"{subject} does not fit its schema: `{errors[0].json_path}`: {errors[0].message}")
