"""The part of the OpenAPI description about the protocols of KServe's and Triton's clients: V1 and V2."""

from typing import Any

from marina.config.record import Record
from marina.server.pages.door_pages import model_metadata
from marina.server.pages.examples import PICTURE, body_example, tensors_example
from marina.server.pages.openapi_parts import JSON, Schema, answer, content, object_of, operation, refusal
from marina.server.pages.schemas import answer_schema, body_types, is_own, request_schema

_TEXT: Schema = {"type": "string"}
_NUMBERS: Schema = {"type": "array", "items": {"type": ["boolean", "number", "string", "array"]}}
_LIVE = object_of({"live": {"const": True}})
_READY = object_of({"ready": {"type": "boolean"}})
_NAMED = object_of({"name": _TEXT})
_SHAPE: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TENSORS: Schema = {"type": "array", "items": object_of({"name": _TEXT, "datatype": _TEXT, "shape": {"type": "array"}})}
_METADATA = object_of(
    {"name": _TEXT, "versions": {"type": "array", "items": _TEXT}, "inputs": _TENSORS, "outputs": _TENSORS}
)


def protocol_paths(record: Record, refusals: dict[str, Any]) -> dict[str, Any]:
    """The operations by path; none for a language model, which speaks only OpenAI's protocol."""
    if record.text is not None:
        return {}
    v1, v2 = f"/v1/models/{record.name}", f"/v2/models/{record.name}"
    metadata = answer("the inputs and outputs", JSON, _METADATA)
    return {
        f"{v1}:predict": {"post": _inference("predictV1", "KServe's V1", _v1(record), refusals)},
        v1: {"get": _readiness("modelV1", "Whether the model is ready, in V1", _NAMED)},
        f"{v2}/infer": {"post": _inference("inferV2", "The Open Inference Protocol, V2", _v2(record), refusals)},
        v2: {"get": operation("modelV2", "The model's inputs and outputs", metadata)},
        f"{v2}/ready": {"get": _readiness("modelReadyV2", "Whether the model is ready, in V2", _READY)},
        "/v2": {"get": operation("serverV2", "The server, in V2", answer("the server's name", JSON, _NAMED))},
        "/v2/health/live": {"get": operation("liveV2", "Whether the server runs", answer("it runs", JSON, _LIVE))},
        "/v2/health/ready": {"get": _readiness("readyV2", "Whether inference is answered", _READY)},
    }


def _inference(name: str, text: str, form: tuple[Schema, Any, Schema], refusals: dict[str, Any]) -> dict[str, Any]:
    takes, example, gives = form
    body = {"required": True, "content": content({JSON: takes}, {} if example is None else {JSON: example})}
    responses = {"200": answer("the answer", JSON, gives)} | refusals
    return {"operationId": name, "summary": text, "requestBody": body, "responses": responses}


def _readiness(name: str, text: str, schema: Schema) -> dict[str, Any]:
    described = operation(name, text, answer("ready", JSON, schema))
    described["responses"]["503"] = refusal("not ready")
    return described


def _v1(record: Record) -> tuple[Schema, Any, Schema]:
    """The schemas of a V1 request and its answer, with an example between them. An instance is whatever the model takes
    as a whole body, or bytes in base64."""
    in_base64 = object_of({"b64": _TEXT}, closed=True)
    takes_json = JSON in body_types(record)
    instance = {"anyOf": [request_schema(record), in_base64]} if takes_json else in_base64
    known: Any = body_example(record) if takes_json else None
    if record.handler == "image":
        known = {"b64": PICTURE}
    predictions: Schema = {"type": "array", "items": {} if is_own(record) else answer_schema(record)}
    request: Schema = object_of({"instances": {"type": "array", "minItems": 1, "items": instance}})
    return request, None if known is None else {"instances": [known]}, object_of({"predictions": predictions})


def _v2(record: Record) -> tuple[Schema, Any, Schema]:
    """The schemas of a V2 request and its answer, with an example between them."""
    metadata = model_metadata(record)
    names = [tensor["name"] for tensor in metadata["inputs"]]
    taken = {"name": {"enum": names}, "shape": _SHAPE, "datatype": _TEXT, "data": _NUMBERS}
    request = object_of({"inputs": {"type": "array", "minItems": len(names), "items": object_of(taken)}})
    request["properties"]["id"] = _TEXT
    # A custom handler may name its outputs freely.
    named: Schema = _TEXT if is_own(record) else {"enum": [tensor["name"] for tensor in metadata["outputs"]]}
    given = {"name": named, "shape": _SHAPE, "datatype": _TEXT}
    outputs: Schema = {"type": "array", "items": object_of(given)}
    gives = object_of({"model_name": _TEXT, "model_version": _TEXT, "outputs": outputs})
    known = tensors_example(record)
    return request, None if known is None else {"inputs": known}, gives
