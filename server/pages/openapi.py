"""The OpenAPI 3.1 description of one server, made from the record of its package: its requests and answers.

It promises only what is true: the e2e tests generate requests from it and check the server's answers against it."""

from typing import Any

from marina.config.record import Record
from marina.config.render import FRONTEND_LIMIT_FACTOR, Ports
from marina.server.pages.examples import body_example
from marina.server.pages.openapi_parts import (
    ANY,
    JSON,
    Schema,
    answer,
    content,
    object_of,
    operation,
    refusal,
    schema_reference,
)
from marina.server.pages.openapi_protocols import protocol_paths
from marina.server.pages.openapi_text import ROUTES, text_error_schema, text_request_schema
from marina.server.pages.schemas import answer_types, body_types, is_own

_EVENTS = "text/event-stream"
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


def openapi(record: Record, *, host: str, ports: Ports) -> dict[str, Any]:
    """The description as plain data; `host` is the address at which the inference port can be reached."""
    variables = {"host": {"default": host}, "port": {"default": str(ports.inference)}}
    inference = {"servers": [{"url": "http://{host}:{port}", "variables": variables, "description": "inference"}]}
    by_protocol = protocol_paths(record, _refusals(record))
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
            **{path: inference | methods for path, methods in {**_openai_paths(record), **by_protocol}.items()},
            **_supervisor_paths(),
            "/docs": {"get": operation("docs", "The page for trying the model", answer("the page", "text/html", ANY))},
            "/docs/sample": {
                "get": operation(
                    "sample", "The package's sample", answer("a body to send", record.sample.content_type, ANY)
                )
            },
            "/docs/try": {"post": _try_operation(record)},
            "/openapi.json": {
                "get": operation("openapi", "This description", answer("OpenAPI 3.1", JSON, {"type": "object"}))
            },
        },
        "components": {"schemas": _SCHEMAS},
    }


def _inference(record: Record, name: str, text: str) -> dict[str, Any]:
    answers = answer_types(record)
    responses = {"200": {"description": "the answer", "content": content(answers)}} | _refusals(record)
    if record.text is not None:
        answers[_EVENTS] = ANY
        responses["200"]["content"] = content(answers)
        for status in ("400", "404", "413", "503"):
            responses[status] = answer("an error in OpenAI's form", JSON, text_error_schema())
    types, example = body_types(record), body_example(record)
    kind = JSON if record.takes is None else record.takes.content_type
    body = {"required": True, "content": content(types, {} if example is None else {kind: example})}
    return {"operationId": name, "summary": text, "requestBody": body, "responses": responses}


def _refusals(record: Record) -> dict[str, Any]:
    """The responses to inference requests that are refused or fail."""
    refusals = _REFUSALS | (_NOT_ACCEPTABLE if record.handler == "tensor" else {})
    limit = round(record.max_request_bytes * FRONTEND_LIMIT_FACTOR)
    responses = {status: refusal(why.format(limit=limit)) for status, why in sorted(refusals.items())}
    if is_own(record) or record.text is not None:
        # Such handlers choose their own errors.
        responses["default"] = {"description": "an answer in the handler's own form", "content": content({"*/*": ANY})}
    return responses


def _openai_paths(record: Record) -> dict[str, Any]:
    """OpenAI's paths, which a language model has."""
    if record.text is None:
        return {}
    operations: dict[str, Any] = {}
    for form, path in ROUTES.items():
        if form == "models":
            listed = answer("the model, in a list", JSON, object_of({"data": {"type": "array"}}))
            operations[path] = {"get": operation("models", "The models of this server", listed)}
            continue
        described = _inference(record, form, f"OpenAI's {path.removeprefix('/v1/')}")
        body = {"required": True, "content": content({JSON: text_request_schema(record.text, form)})}
        operations[path] = {"post": described | {"requestBody": body}}
    return operations


def _try_operation(record: Record) -> dict[str, Any]:
    """The operation of `/docs/try`: inference, plus the supervisor's own refusals."""
    tried = _inference(record, "try", "The same inference, forwarded by the supervisor for the page")
    for status, why in (("403", "sent by a page of another site"), ("411", "no valid `Content-Length`")):
        tried["responses"][status] = refusal(why)
    return tried


def _supervisor_paths() -> dict[str, Any]:
    ready = {
        status: answer(why, JSON, schema_reference("Readiness"))
        for status, why in (("200", "every worker is there and has answered"), ("503", "not ready; `missing` says why"))
    }
    package = answer("the package", JSON, schema_reference("Package"))
    live = object_of({"live": {"const": True}, "state": {"type": "string"}})
    return {
        "/live": {"get": operation("live", "Whether the supervisor runs", answer("it runs", JSON, live))},
        "/ready": {"get": {"operationId": "ready", "summary": "Whether inference is answered", "responses": ready}},
        "/metrics": {"get": operation("metrics", "Metrics for Prometheus", answer("the page", "text/plain", ANY))},
        "/package": {"get": operation("package", "Which package is served", package)},
    }


_WORKERS = object_of({"declared": {"type": "integer"}, "ready": {"type": "integer"}})
_SCHEMAS: dict[str, Schema] = {
    "Refusal": object_of({"error": {"type": "string"}})
    | {"description": "What is wrong, with `field`, `got`, `allowed` and `hint` where they help."},
    "Readiness": object_of(
        {
            "ready": {"type": "boolean"},
            "state": {"type": "string"},
            "missing": {"type": "array", "items": {"type": "string"}},
            "warnings": {"type": "array", "items": {"type": "string"}},
            "workers": _WORKERS,
        }
    ),
    "Package": object_of({name: {"type": "string"} for name in ("name", "version", "compile", "sha256", "mar")}),
}
