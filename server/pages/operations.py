"""The parts of an operation in an OpenAPI description: what is answered, what is refused, in which content types."""

from __future__ import annotations

from typing import Any

from server.pages.schemas import JSON, Schema


def operation(name: str, text: str, response: dict[str, Any]) -> dict[str, Any]:
    """An operation that has one answer."""
    return {"operationId": name, "summary": text, "responses": {"200": response}}


def answer(text: str, content_type: str, schema: Schema) -> dict[str, Any]:
    """An answer of one content type."""
    return {"description": text, "content": content({content_type: schema})}


def refusal(why: str) -> dict[str, Any]:
    """An answer that says what is wrong."""
    return answer(why, JSON, schema_reference("Refusal"))


def schema_reference(name: str) -> Schema:
    """A schema that the description has by a name."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(schemas: dict[str, Schema], examples: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content types of a body, each with its schema and, where one is known, an example."""
    shown = {kind: {"example": example} for kind, example in (examples or {}).items()}
    return {kind: ({"schema": schema} if schema else {}) | shown.get(kind, {}) for kind, schema in schemas.items()}
