"""Builds the parts of an OpenAPI description: operations, answers, refusals, content types, schemas of objects."""

from typing import Any

Schema = dict[str, Any]

JSON = "application/json"
ANY: Schema = {}


def object_of(properties: dict[str, Schema], *, closed: bool = False) -> Schema:
    """The schema of an object in which all these properties are required; if `closed`, no others are allowed."""
    shut = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(properties), **shut}


def operation(name: str, text: str, response: dict[str, Any]) -> dict[str, Any]:
    """An operation with a single response, 200."""
    return {"operationId": name, "summary": text, "responses": {"200": response}}


def answer(text: str, content_type: str, schema: Schema) -> dict[str, Any]:
    """A response of one content type."""
    return {"description": text, "content": content({content_type: schema})}


def refusal(why: str) -> dict[str, Any]:
    """A response with Marina's error object."""
    return answer(why, JSON, schema_reference("Refusal"))


def schema_reference(name: str) -> Schema:
    """A reference to a named schema of the description."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(schemas: dict[str, Schema], examples: dict[str, Any] | None = None) -> dict[str, Any]:
    """The `content` of a body: each content type with its schema and, if there is one, its example."""
    shown = {kind: {"example": example} for kind, example in (examples or {}).items()}
    return {kind: ({"schema": schema} if schema else {}) | shown.get(kind, {}) for kind, schema in schemas.items()}
