"""The OpenAPI 3.1 description of one server, made from the record of its package: its requests and answers.

It promises only what is true: the e2e tests generate requests from it and check the server's answers against it."""

from typing import Any

from marina.config.record import Record
from marina.config.render import frontend_limit
from marina.server.pages.schemas import (
    ANY,
    JSON,
    OPENAI_PATHS,
    TEXT,
    Schema,
    answer_schema,
    answer_types,
    array_of,
    body_example,
    body_types,
    instance_example,
    is_own,
    model_metadata,
    object_of,
    request_schema,
    tensors_example,
    text_error_schema,
    text_request_schema,
)

_REFUSALS = {
    "400": "the body cannot be read: broken, cut short, or not JSON",
    "413": "over a limit; a body of more than {limit} bytes is not read",
    "415": "a kind of body that this model does not take",
    "422": "well formed, but of the wrong shape, type or range",
    "500": "the model failed at this request",
    "503": "no worker is ready, or the queue is full and the request was shed",
    "507": "out of memory, also after the batch was split",
}
_NOT_ACCEPTABLE = {"406": "the answer cannot be given in the form that `Accept` asks for"}
_REFUSAL = object_of({"error": TEXT}) | {
    "description": "What is wrong, with `field`, `got`, `allowed` and `hint` where they help."
}
_TORCHSERVES = object_of({"code": {"type": "integer"}, "type": TEXT, "message": TEXT}) | {
    "description": "An error in TorchServe's form."
}
_LIVE, _READY, _NAMED = object_of({"live": {"const": True}}), object_of({"ready": {"type": "boolean"}}), {"name": TEXT}
_SHAPE = array_of({"type": "integer", "minimum": 0})
_TENSORS = array_of(object_of({"name": TEXT, "datatype": TEXT, "shape": {"type": "array"}}))
_METADATA = object_of({"name": TEXT, "versions": array_of(TEXT), "inputs": _TENSORS, "outputs": _TENSORS})


def openapi(record: Record) -> dict[str, Any]:
    """The description as plain data. Its paths are those of the inference port, where it is itself."""
    return {
        "openapi": "3.1.0",
        "info": {"title": record.name, "version": record.version},
        "servers": [{"url": "/"}],
        "paths": {
            f"/predictions/{record.url_name}": {"post": _inference(record, "predict", "One inference")},
            **_other_paths(record),
        },
        "components": {"schemas": {"Refusal": _REFUSAL if record.archive is None else _TORCHSERVES}},
    }


def _other_paths(record: Record) -> dict[str, Any]:
    if record.archive is not None:
        # What KServe's paths take and answer is known to its handler alone.
        return {f"/explanations/{record.url_name}": {"post": _inference(record, "explain", "One explanation")}}
    return _protocol_paths(record) if record.text is None else _openai_paths(record)


def _inference(record: Record, name: str, text: str) -> dict[str, Any]:
    answers = answer_types(record)
    refusals = _refusals(record)
    if record.text is not None:
        answers["text/event-stream"] = ANY
        error = _answer("an error in OpenAI's form", text_error_schema())
        refusals |= dict.fromkeys(("400", "404", "413", "503"), error)
    example, kind = body_example(record), JSON if record.takes is None else record.takes.content_type
    body = _content(body_types(record), {} if example is None else {kind: example})
    responses = {"200": {"description": "the answer", "content": _content(answers)}} | refusals
    return _asked(name, text, body, responses)


def _refusals(record: Record) -> dict[str, Any]:
    """The responses to inference requests that are refused or fail."""
    known = (
        _REFUSALS if record.archive is None else {code: _REFUSALS[code] for code in ("400", "413", "500", "503", "507")}
    )
    refusals = known | (_NOT_ACCEPTABLE if record.handler == "tensor" else {})
    limit = frontend_limit(record.max_request_bytes, adopted=record.archive is not None)
    responses = {status: _refusal(why.format(limit=limit)) for status, why in sorted(refusals.items())}
    if is_own(record) or record.text is not None:
        # Such handlers choose their own errors.
        responses["default"] = {"description": "an answer in the handler's own form", "content": _content({"*/*": ANY})}
    return responses


def _openai_paths(record: Record) -> dict[str, Any]:
    """OpenAI's paths, which a language model has."""
    assert record.text is not None
    listed = _answer("the model, in a list", object_of({"data": {"type": "array"}}))
    paths = {OPENAI_PATHS["models"]: {"get": _operation("models", "The models of this server", {"200": listed})}}
    for form in ("complete", "chat"):
        described = _inference(record, form, f"OpenAI's {OPENAI_PATHS[form].removeprefix('/v1/')}")
        body = {"required": True, "content": _content({JSON: text_request_schema(record.text, form)})}
        paths[OPENAI_PATHS[form]] = {"post": described | {"requestBody": body}}
    return paths


def _protocol_paths(record: Record) -> dict[str, Any]:
    """The paths of KServe's and Triton's clients: V1 and V2."""
    v1, v2 = f"/v1/models/{record.url_name}", f"/v2/models/{record.url_name}"

    def shown(name: str, text: str, schema: Schema, *, unready: bool = False) -> dict[str, Any]:
        responses = {"200": _answer("the answer", schema)} | ({"503": _refusal("not ready")} if unready else {})
        return {"get": _operation(name, text, responses)}

    return {
        f"{v1}:predict": {"post": _v1(record)},
        f"{v2}/infer": {"post": _v2(record)},
        v1: shown("modelV1", "Whether the model is ready, in V1", object_of(_NAMED), unready=True),
        v2: shown("modelV2", "The model's inputs and outputs", _METADATA),
        f"{v2}/ready": shown("modelReadyV2", "Whether the model is ready, in V2", _READY, unready=True),
        "/v2": shown("serverV2", "The server, in V2", object_of(_NAMED)),
        "/v2/health/live": shown("liveV2", "Whether the server runs", _LIVE),
        "/v2/health/ready": shown("readyV2", "Whether inference is answered", _READY, unready=True),
    }


def _v1(record: Record) -> dict[str, Any]:
    """V1: an instance is whatever the model takes as a whole body, or bytes in base64."""
    in_base64 = object_of({"b64": TEXT}, closed=True)
    instance = {"anyOf": [request_schema(record), in_base64]} if JSON in body_types(record) else in_base64
    known = instance_example(record)
    examples = {} if known is None else {JSON: {"instances": [known]}}
    body = _content({JSON: object_of({"instances": array_of(instance, minItems=1)})}, examples)
    predictions = array_of({} if is_own(record) else answer_schema(record))
    answered = _answer("the answer", object_of({"predictions": predictions}))
    return _asked("predictV1", "KServe's V1", body, {"200": answered} | _refusals(record))


def _v2(record: Record) -> dict[str, Any]:
    metadata = model_metadata(record)
    names = [tensor["name"] for tensor in metadata["inputs"]]
    numbers = array_of({"type": ["boolean", "number", "string", "array"]})
    taken = object_of({"name": {"enum": names}, "shape": _SHAPE, "datatype": TEXT, "data": numbers})
    request = object_of({"inputs": array_of(taken, minItems=len(names))})
    request["properties"]["id"] = TEXT
    known = tensors_example(record)
    body = _content({JSON: request}, {} if known is None else {JSON: {"inputs": known}})
    # A custom handler may name its outputs freely.
    named: Schema = TEXT if is_own(record) else {"enum": [tensor["name"] for tensor in metadata["outputs"]]}
    given = object_of({"name": named, "shape": _SHAPE, "datatype": TEXT})
    whole = object_of({"model_name": TEXT, "model_version": TEXT, "outputs": array_of(given)})
    responses = {"200": _answer("the answer", whole)} | _refusals(record)
    return _asked("inferV2", "The Open Inference Protocol, V2", body, responses)


def _operation(name: str, text: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": name, "summary": text, "responses": responses}


def _asked(name: str, text: str, body: dict[str, Any], responses: dict[str, Any]) -> dict[str, Any]:
    """An operation with a body."""
    return _operation(name, text, responses) | {"requestBody": {"required": True, "content": body}}


def _answer(text: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": _content({JSON: schema})}


def _refusal(why: str) -> dict[str, Any]:
    """A response with Marina's error object."""
    return _answer(why, {"$ref": "#/components/schemas/Refusal"})


def _content(schemas: dict[str, Schema], examples: dict[str, Any] | None = None) -> dict[str, Any]:
    """The `content` of a body: each content type with its schema and, if there is one, its example."""
    shown = {kind: {"example": example} for kind, example in (examples or {}).items()}
    return {kind: ({"schema": schema} if schema else {}) | shown.get(kind, {}) for kind, schema in schemas.items()}
