"""The JSON Schema of a spec, by which editors complete its fields, explain them and underline what is wrong."""

import json
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from marina.config.spec import Spec


class _Plain(GenerateJsonSchema):
    """Without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def render_schema() -> str:
    """`config/spec.schema.json`, which `marina check --schema` prints."""
    schema = Spec.model_json_schema(schema_generator=_Plain)
    schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A spec of Marina"}
    slo = schema["$defs"]["Slo"]
    # Of a language model's objective it may be computed.
    slo["required"].remove("p99_ms")
    return json.dumps(_one_line(schema), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _one_line(value: Any) -> Any:
    """The schema with each description on one line, as its editor shows it."""
    if isinstance(value, list):
        return [_one_line(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain: JsonSchemaValue = {name: _one_line(item) for name, item in value.items()}
    if isinstance(text := plain.get("description"), str):
        plain["description"] = re.sub(r"\s+", " ", text)
    return plain
