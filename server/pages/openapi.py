"""The OpenAPI 3.1 description of one server, from the record of its package: what may be sent, what comes back.

It says no more than what holds: the e2e tests generate requests from it and compare the server's answers with it.
"""

from __future__ import annotations

from typing import Any

from config.record import Port, Record
from config.render import FRONTEND_LIMIT_FACTOR, Ports
from config.sections import Image
from server.pages.openapi_text import answered_schema, asked_schema, refused_schema, routes

Schema = dict[str, Any]

_JSON, _NPY = "application/json", "application/x-npy"
_EVENTS = "text/event-stream"
_PICTURES = ("image/jpeg", "image/png", "image/webp")
_WHOLE = {"uint8": (0, 2**8 - 1), "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
_ANY: Schema = {}
_REFUSALS = {
    "400": "the bytes are not what they claim to be: broken, cut short, no JSON",
    "413": "over a limit; a body of more than {limit} bytes is not read",
    "415": "a kind of body that this model does not take",
    "422": "well formed, but of the wrong shape, type or range",
    "500": "the model's fault, for this request alone",
    "503": "no worker is there, or the queue is full and the request was shed",
    "507": "out of memory, also after the batch was split",
}
_NOT_ACCEPTABLE = {"406": "the answer cannot be given in the form that `Accept` asks for"}


def openapi(record: Record, *, host: str, ports: Ports) -> dict[str, Any]:
    """The description as plain data; `host` is where the inference port can be reached."""
    variables = {"host": {"default": host}, "port": {"default": str(ports.inference)}}
    inference = {"servers": [{"url": "http://{host}:{port}", "variables": variables, "description": "inference"}]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": record.name,
            "version": record.version,
            "description": "Inference is answered by TorchServe, everything else by the supervisor beside it.",
        },
        "servers": [{"url": "/", "description": "the supervisor's pages"}],
        "paths": {
            f"/predictions/{record.name}": inference | {"post": _inference(record, "predict", "One inference")},
            **{path: inference | operation for path, operation in _writing(record).items()},
            **_pages(),
            "/docs": {"get": _operation("docs", "The page to try the model", _answer("the page", "text/html", _ANY))},
            "/docs/sample": {
                "get": _operation(
                    "sample", "The package's sample", _answer("a body to send", record.sample.content_type, _ANY)
                )
            },
            "/docs/try": {"post": _trying(record)},
            "/openapi.json": {
                "get": _operation("openapi", "This description", _answer("OpenAPI 3.1", _JSON, {"type": "object"}))
            },
        },
        "components": {"schemas": _SCHEMAS},
    }


def request_schema(record: Record) -> Schema:
    """What a JSON body must look like; anything for your own handler."""
    if record.text is not None:
        return asked_schema(record.text, "any")
    if record.handler == "image" and record.image is not None:
        return _object({"image": {"anyOf": [_picture_text(), *_normalised(record.image)]}})
    if record.handler == "tensor":
        named = _object({port.name: _array(port) for port in record.inputs}, closed=True)
        forms = [named, *(_array(port) for port in record.inputs if len(record.inputs) == 1)]
        if list(named["properties"]) != ["inputs"]:
            forms.append(_object({"inputs": named}, closed=True))
        return {"anyOf": forms}
    if record.encoding is not None:
        return _text_schema(record.encoding.task)
    return _ANY


def answer_schema(record: Record) -> Schema:
    """What a JSON answer looks like; anything for your own handler."""
    if record.text is not None:
        return answered_schema()
    if record.handler == "image":
        shapes = {port.name: _array(port) for port in record.outputs}
        if record.labels is not None:
            classes = next(port for port in record.outputs if port.name == "top_indices")
            shapes["top_labels"] = _nested(classes.shape, {"type": "string"})
        return _object(shapes, closed=True)
    if record.handler == "tensor":
        return _object({port.name: _array(port) for port in record.outputs}, closed=True)
    return _ANY


def _text_schema(task: str) -> Schema:
    text: Schema = {"type": "string"}
    texts: Schema = {"type": "array", "items": text, "minItems": 1}
    if task == "rerank":
        return _object({"query": text, "documents": texts})
    forms = [text, texts, _object({"text": {"anyOf": [text, texts]}}, closed=True)]
    return {"anyOf": [*forms, _object({"input": {"anyOf": [text, texts]}})] if task == "embed" else forms}


def body_types(record: Record) -> dict[str, Schema]:
    """The content types that are taken, each with its schema."""
    if record.handler == "image":
        pictures = {kind: {"contentMediaType": kind} for kind in _PICTURES}
        form = _object({"image": {"type": "string", "contentMediaType": "application/octet-stream"}}, closed=True)
        return pictures | {_JSON: request_schema(record), _NPY: _ANY, "multipart/form-data": form}
    if record.text is not None:
        return {_JSON: request_schema(record)}
    if record.handler == "tensor":
        return {_JSON: request_schema(record)} | ({_NPY: _ANY} if len(record.inputs) == 1 else {})
    if record.encoding is not None:
        return {_JSON: request_schema(record), "text/plain": {"type": "string"}}
    return {record.sample.content_type: _ANY, "*/*": _ANY}


def _inference(record: Record, name: str, text: str) -> dict[str, Any]:
    own = record.handler not in ("image", "tensor") and record.encoding is None
    answers = {"*/*": _ANY} if own else {_JSON: answer_schema(record)}
    if record.handler == "tensor" and len(record.outputs) == 1:
        answers[_NPY] = _ANY
    responses = {"200": {"description": "the answer", "content": _content(answers)}}
    refusals = _REFUSALS | (_NOT_ACCEPTABLE if record.handler == "tensor" else {})
    limit = round(record.max_request_bytes * FRONTEND_LIMIT_FACTOR)
    for status, why in sorted(refusals.items()):
        responses[status] = _refusal(why.format(limit=limit))
    if record.text is not None:
        answers[_EVENTS] = _ANY
        responses["200"]["content"] = _content(answers)
        for status in ("400", "404", "413", "503"):
            responses[status] = _answer("refused, in OpenAI's shape", _JSON, refused_schema())
    if own:
        # Its errors are its own to choose.
        responses["default"] = {"description": "an answer of the handler's own", "content": _content({"*/*": _ANY})}
    body = {"required": True, "content": _content(body_types(record))}
    return {"operationId": name, "summary": text, "requestBody": body, "responses": responses}


def _writing(record: Record) -> dict[str, Any]:
    """OpenAI's paths, of a language model."""
    if record.text is None:
        return {}
    operations: dict[str, Any] = {}
    for form, path in routes(record).items():
        if form == "models":
            listed = _answer("the model, in a list", _JSON, _object({"data": {"type": "array"}}))
            operations[path] = {"get": _operation("models", "The models of this server", listed)}
            continue
        operation = _inference(record, form, f"OpenAI's {path.partition('/v1/')[2]}")
        body = {"required": True, "content": _content({_JSON: asked_schema(record.text, form)})}
        operations[path] = {"post": operation | {"requestBody": body}}
    return operations


def _trying(record: Record) -> dict[str, Any]:
    """The same through the supervisor, for the page: what it refuses itself comes on top."""
    operation = _inference(record, "try", "The same inference, sent on by the supervisor for the page")
    for status, why in (("403", "asked for by a page of another site"), ("411", "a body without its length")):
        operation["responses"][status] = _refusal(why)
    return operation


def _pages() -> dict[str, Any]:
    ready = {
        status: _answer(why, _JSON, _schema("Readiness"))
        for status, why in (("200", "every worker is there and has answered"), ("503", "not so; `missing` says why"))
    }
    package = _answer("the package", _JSON, _schema("Package"))
    live = _object({"live": {"const": True}, "state": {"type": "string"}})
    return {
        "/live": {"get": _operation("live", "Whether the supervisor runs", _answer("it does", _JSON, live))},
        "/ready": {"get": {"operationId": "ready", "summary": "Whether inference is answered", "responses": ready}},
        "/metrics": {"get": _operation("metrics", "Metrics for Prometheus", _answer("the page", "text/plain", _ANY))},
        "/package": {"get": _operation("package", "Which package is served", package)},
    }


def _operation(name: str, text: str, response: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": name, "summary": text, "responses": {"200": response}}


def _answer(text: str, content_type: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": _content({content_type: schema})}


def _refusal(why: str) -> dict[str, Any]:
    return _answer(why, _JSON, _schema("Refusal"))


def _schema(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schemas: dict[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} if schema else {} for kind, schema in schemas.items()}


def _object(properties: dict[str, Schema], *, closed: bool = False) -> Schema:
    shut = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(properties), **shut}


def _nested(shape: tuple[int, ...], item: Schema, varies: int | None = None) -> Schema:
    for place, side in reversed(list(enumerate(shape))):
        item = {"type": "array", "items": item, "minItems": 1 if place == varies else side, "maxItems": side}
    return item


def _array(port: Port) -> Schema:
    if port.dtype == "bool":
        return _nested(port.shape, {"type": "boolean"}, port.varies)
    whole = port.dtype in _WHOLE
    low, high = _WHOLE[port.dtype] if whole else (-_LARGEST[port.dtype], _LARGEST[port.dtype])
    low = low if port.min is None else max(low, port.min)
    high = high if port.max is None else min(high, port.max)
    value = {"type": "integer" if whole else "number", "minimum": low, "maximum": high}
    return _nested(port.shape, value, port.varies)


def _picture_text() -> Schema:
    return {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}


def _normalised(image: Image) -> list[Schema]:
    """Floats as clients normalise them, channel-first: nested, and flat where all channels have the same range."""
    planes = [
        _nested((image.height, image.width), {"type": "number", "minimum": -mean / std, "maximum": (1 - mean) / std})
        for mean, std in zip(image.per_channel(image.mean), image.per_channel(image.std), strict=True)
    ]
    nested = {"type": "array", "prefixItems": planes, "items": False, "minItems": len(planes)}
    flat: Schema = {"type": "number"}
    if all(plane == planes[0] for plane in planes):
        flat = planes[0]["items"]["items"]
    size = image.channels * image.height * image.width
    return [nested, _nested((size,), flat)]


_WORKERS = _object({"declared": {"type": "integer"}, "ready": {"type": "integer"}})
_SCHEMAS: dict[str, Schema] = {
    "Refusal": _object({"error": {"type": "string"}})
    | {"description": "What is wrong, and where it helps `field`, `got`, `allowed` and `hint`."},
    "Readiness": _object(
        {
            "ready": {"type": "boolean"},
            "state": {"type": "string"},
            "missing": {"type": "array", "items": {"type": "string"}},
            "warnings": {"type": "array", "items": {"type": "string"}},
            "workers": _WORKERS,
        }
    ),
    "Package": _object({name: {"type": "string"} for name in ("name", "version", "compile", "sha256", "mar")}),
}
