"""The schemas of a language model's requests and answers, for the OpenAPI description: OpenAI's completions and
chat."""

from marina.config.record import Writing
from marina.server.pages.openapi_parts import Schema, object_of

# OpenAI's paths, by short names.
ROUTES = {"complete": "/v1/completions", "chat": "/v1/chat/completions", "models": "/v1/models"}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FORM: Schema = {
    "type": "object",
    "properties": {"type": {"enum": ["json_object", "text"]}},
    "required": ["type"],
    "additionalProperties": False,
    "description": "Or `json_schema`, with `json_schema: {name, schema}` beside it: the answer matches that schema",
}
_END: Schema = {"enum": ["length", "stop", None]}


def text_request_schema(text: Writing, form: str) -> Schema:
    """The schema of a request body. `form` is `complete` or `chat`; with any other value, either of the two."""
    common: dict[str, Schema] = {
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": text.max_tokens},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "stop": {"type": "array", "maxItems": 4, "items": {"type": "string", "minLength": 1, "maxLength": 200}},
        "stream": {"type": "boolean"},
        "response_format": _FORM,
    }
    if form == "complete":
        prompt: Schema = {"type": "string", "minLength": 1}
        return {"type": "object", "properties": {"prompt": prompt} | common, "required": ["prompt"]}
    if form == "chat":
        roles: Schema = {"enum": ["assistant", "developer", "system", "user"]}
        message = object_of({"role": roles, "content": _TEXT})
        messages: Schema = {"type": "array", "minItems": 1, "maxItems": 1000, "items": message}
        return {"type": "object", "properties": {"messages": messages} | common, "required": ["messages"]}
    return {"anyOf": [text_request_schema(text, "complete"), text_request_schema(text, "chat")]}


def text_answer_schema() -> Schema:
    """The schema of a complete answer. Streamed answers are `text/event-stream` instead."""
    choice = {"type": "object", "properties": {"index": _COUNT, "finish_reason": _END}, "required": ["finish_reason"]}
    choices: Schema = {"type": "array", "minItems": 1, "maxItems": 1, "items": choice}
    usage = object_of(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _COUNT))
    return object_of({"id": _TEXT, "object": _TEXT, "model": _TEXT, "choices": choices, "usage": usage})


def text_error_schema() -> Schema:
    """The schema of an error, in OpenAI's form."""
    fields: dict[str, Schema] = {"message": _TEXT, "type": _TEXT, "param": {}, "code": {}}
    error: Schema = {"type": "object", "properties": fields, "required": ["message", "type"]}
    return object_of({"error": error})
