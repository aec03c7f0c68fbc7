"""KServe's V1: `{"instances": [...]}` in, `{"predictions": [...]}` out.

An instance is anything that the handler takes as a whole body: a JSON value, or `{"b64": "..."}` for bytes. A
prediction is its answer: a JSON value, or `{"b64": "..."}` for any other type."""

import base64
from collections.abc import Mapping

import orjson

from marina.handlers.protocols.exchange import Exchange, ProtocolHandler, Row, check_row_count, check_time
from marina.handlers.request import JSON, Answer, Request
from marina.handlers.validation import RequestError, Unprocessable, decode_base64, describe_json

# The keys under which clients of TorchServe and TensorFlow Serving send bytes.
_WRAPPERS = ("b64", "body", "data", "image_bytes")


def read_exchange(handler: ProtocolHandler, request: Request, until: float) -> Exchange:
    value = request.json()
    instances = value.get("instances") if isinstance(value, Mapping) else None
    if not isinstance(instances, list) or not instances:
        got = (
            "no `instances`" if isinstance(value, Mapping) and instances is None else describe_json(instances or value)
        )
        raise Unprocessable("instances are needed", field="instances", got=got, allowed='{"instances": [...]}')
    check_row_count(len(instances), handler.max_rows, "instances")
    names = {spec.name for spec in handler.record.inputs}
    parts: list[Request] = []
    rows: list[Row] = []
    for index, instance in enumerate(instances):
        check_time(until)
        try:
            parts.append(request.instance(unwrap(instance, names)))
            rows.append(handler.decode_row(parts[-1]))
        except RequestError as err:
            raise err.inside(f"instances[{index}]") from err

    def answer(outputs: list[Row]) -> Answer:
        answers = [handler.encode(row, part) for row, part in zip(outputs, parts, strict=True)]
        return Answer(orjson.dumps({"predictions": [_prediction(encoded) for encoded in answers]}))

    return Exchange(rows, answer)


def unwrap(value: object, names: set[str] | None = None) -> object:
    """Decodes `{"b64": "..."}` and similar wrappers, nested ones too, into bytes; returns anything else unchanged.
    `names` are those of the model's inputs, which are never taken for wrappers."""
    while isinstance(value, Mapping) and len(value) == 1:
        ((name, inner),) = value.items()
        if name not in _WRAPPERS or name in (names or ()):
            return value
        if isinstance(inner, str):
            return decode_base64(inner, name)
        if name == "b64":
            raise Unprocessable("base64 text is needed", field="b64", got=describe_json(inner))
        value = inner
    return value


def _prediction(answer: Answer) -> object:
    if answer.content_type.partition(";")[0].strip().lower() == JSON:
        return orjson.Fragment(answer.body)
    return {"b64": base64.b64encode(answer.body).decode()}
