"""JSON schemas of a model's request bodies and answers, made from the record of its package."""

from marina.config.record import BodyFormat, Port, Record
from marina.config.sections import Image
from marina.server.pages.openapi_parts import ANY, JSON, Schema, object_of
from marina.server.pages.openapi_text import text_answer_schema, text_request_schema

NPY = "application/x-npy"
_PICTURES = ("image/jpeg", "image/png", "image/webp")
_BITS = (8, 16, 32, 64)
_WHOLE = {f"uint{bits}": (0, 2**bits - 1) for bits in _BITS}
_WHOLE |= {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in _BITS}
_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}


def request_schema(record: Record) -> Schema:
    """The schema of a JSON body; of a custom handler what it declares, or else anything."""
    if record.takes is not None:
        return _declared_schema(record.takes)
    if record.text is not None:
        return text_request_schema(record.text, "any")
    if record.handler == "image" and record.image is not None:
        text = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
        return object_of({"image": {"anyOf": [text, *_normalised_images(record.image)]}})
    if record.handler == "tensor":
        named = object_of({port.name: _array(port) for port in record.inputs}, closed=True)
        forms = [named, *(_array(port) for port in record.inputs if len(record.inputs) == 1)]
        if list(named["properties"]) != ["inputs"]:
            forms.append(object_of({"inputs": named}, closed=True))
        return {"anyOf": forms}
    if record.encoding is not None:
        return _text_schema(record.encoding.task)
    return ANY


def answer_schema(record: Record) -> Schema:
    """The schema of a JSON answer; of a custom handler what it declares, or else anything."""
    if record.gives is not None:
        return _declared_schema(record.gives)
    if record.text is not None:
        return text_answer_schema()
    if record.handler == "image":
        shapes = {port.name: _array(port) for port in record.outputs}
        if record.labels is not None:
            classes = next(port for port in record.outputs if port.name == "top_indices")
            shapes["top_labels"] = _nested(classes.shape, {"type": "string"})
        return object_of(shapes, closed=True)
    if record.handler == "tensor":
        return object_of({port.name: _array(port) for port in record.outputs}, closed=True)
    return ANY


def _text_schema(task: str) -> Schema:
    text: Schema = {"type": "string"}
    texts: Schema = {"type": "array", "items": text, "minItems": 1}
    if task == "rerank":
        pairs = object_of({"query": text, "documents": texts})
        return pairs | {"properties": pairs["properties"] | {"top_n": {"type": "integer", "minimum": 1}}}
    forms = [text, texts, object_of({"text": {"anyOf": [text, texts]}}, closed=True)]
    return {"anyOf": [*forms, object_of({"input": {"anyOf": [text, texts]}})] if task == "embed" else forms}


def body_types(record: Record) -> dict[str, Schema]:
    """The content types that a request may have, each with its schema."""
    if record.takes is not None:
        return {record.takes.content_type: _declared_schema(record.takes)}
    if record.handler == "image":
        pictures = {kind: {"contentMediaType": kind} for kind in _PICTURES}
        form = object_of({"image": {"type": "string", "contentMediaType": "application/octet-stream"}}, closed=True)
        return pictures | {JSON: request_schema(record), NPY: ANY, "multipart/form-data": form}
    if record.text is not None:
        return {JSON: request_schema(record)}
    if record.handler == "tensor":
        return {JSON: request_schema(record)} | ({NPY: ANY} if len(record.inputs) == 1 else {})
    if record.encoding is not None:
        return {JSON: request_schema(record), "text/plain": {"type": "string"}}
    return {record.sample.content_type: ANY, "*/*": ANY}


def answer_types(record: Record) -> dict[str, Schema]:
    """The content types that an answer may have, each with its schema."""
    if record.gives is not None:
        return {record.gives.content_type: answer_schema(record)}
    if is_own(record):
        return {"*/*": ANY}
    named = {JSON: answer_schema(record)}
    return named | ({NPY: ANY} if record.handler == "tensor" and len(record.outputs) == 1 else {})


def is_own(record: Record) -> bool:
    """True if the package has a custom handler, written by the user."""
    return record.handler not in ("image", "tensor", "text")


def _declared_schema(form: BodyFormat) -> Schema:
    return form.json_schema | ({} if form.example is None else {"examples": [form.example]})


def _nested(shape: tuple[int, ...], item: Schema, varies: int | None = None) -> Schema:
    for place, side in reversed(list(enumerate(shape))):
        item = {"type": "array", "items": item, "minItems": 1 if place == varies else side, "maxItems": side}
    return item


def _array(port: Port) -> Schema:
    if port.dtype == "bool":
        return _nested(port.shape, {"type": "boolean"}, port.varies)
    if columns := [_number(column) for column in port.by_column()]:
        last: Schema = {"type": "array", "prefixItems": columns, "items": False, "minItems": len(columns)}
        return _nested(port.shape[:-1], last, port.varies)
    return _nested(port.shape, _number(port), port.varies)


def _number(port: Port) -> Schema:
    """The schema of one number of a port."""
    whole = port.dtype in _WHOLE
    low, high = _WHOLE[port.dtype] if whole else (-_LARGEST[port.sent_as], _LARGEST[port.sent_as])
    low = low if port.min is None else max(low, port.min)
    high = high if port.max is None else min(high, port.max)
    return {"type": "integer" if whole else "number", "minimum": low, "maximum": high}


def _normalised_images(image: Image) -> list[Schema]:
    """Schemas of an image in normalised floats, channel-first: nested and flat. The flat one has limits only if all
    channels have the same."""
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
