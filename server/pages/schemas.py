"""What a model's requests and answers look like, made from the record of its package: content types, JSON schemas,
examples, and the inputs and outputs in the terms of the Open Inference Protocol."""

import math
from typing import Any

from marina.config.record import BodyFormat, Port, Record, Writing
from marina.config.sections import Image

Schema = dict[str, Any]

JSON, NPY = "application/json", "application/x-npy"
ANY: Schema = {}
TEXT: Schema = {"type": "string"}
# OpenAI's paths, on which a model that writes texts is asked.
OPENAI_PATHS = {"complete": "/v1/completions", "chat": "/v1/chat/completions", "models": "/v1/models"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PICTURES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/tiff", "image/bmp")
_BITS = (8, 16, 32, 64)
_WHOLE = {f"uint{bits}": (0, 2**bits - 1) for bits in _BITS}
_WHOLE |= {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in _BITS}
_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
DATATYPES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
DATATYPES |= {kind: kind.upper() for kind in _WHOLE}
# Arrays with more values have no example: it would tell the reader no more.
_MAX_VALUES = 200
# One grey pixel.
_PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
_SENTENCE = "Hello."


def object_of(properties: dict[str, Schema], *, closed: bool = False) -> Schema:
    """The schema of an object in which all these properties are required; if `closed`, no others are allowed."""
    shut = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(properties), **shut}


def array_of(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def is_own(record: Record) -> bool:
    """True if the package has a custom handler, written by the user."""
    return record.handler not in ("image", "tensor", "text")


def request_schema(record: Record) -> Schema:
    """The schema of a JSON body; of a custom handler what it declares, or else anything."""
    if record.takes is not None:
        return _declared_schema(record.takes)
    if record.text is not None:
        return {"anyOf": [text_request_schema(record.text, form) for form in ("complete", "chat")]}
    if record.handler == "image" and record.image is not None:
        text = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
        return object_of({"image": {"anyOf": [text, *_normalised_images(record.image)]}})
    if record.handler == "tensor":
        named = object_of({port.name: _array(port) for port in record.inputs}, closed=True)
        forms = [named, *(_array(port) for port in record.inputs if len(record.inputs) == 1)]
        if list(named["properties"]) != ["inputs"]:
            forms.append(object_of({"inputs": named}, closed=True))
        return {"anyOf": forms}
    return ANY if record.encoding is None else _encoder_schema(record.encoding.task)


def answer_schema(record: Record) -> Schema:
    """The schema of a JSON answer; of a custom handler what it declares, or else anything."""
    if record.gives is not None:
        return _declared_schema(record.gives)
    if record.text is not None:
        return _text_answer_schema()
    if record.handler not in ("image", "tensor"):
        return ANY
    is_vector = record.image is not None and record.image.task == "embed"
    shapes = {port.name: _array(port) for port in record.outputs if not is_vector or port.name == "embedding"}
    if record.handler == "image" and record.labels is not None and "top_indices" in shapes:
        classes = next(port for port in record.outputs if port.name == "top_indices")
        shapes["top_labels"] = _nested(classes.shape, TEXT)
    return object_of(shapes, closed=True)


def body_types(record: Record) -> dict[str, Schema]:
    """The content types that a request may have, each with its schema."""
    if record.takes is not None:
        return {record.takes.content_type: _declared_schema(record.takes)}
    if record.handler == "image":
        pictures = {kind: {"contentMediaType": kind} for kind in _PICTURES}
        form = object_of({"image": TEXT | {"contentMediaType": "application/octet-stream"}}, closed=True)
        return pictures | {JSON: request_schema(record), NPY: ANY, "multipart/form-data": form}
    if record.text is not None:
        return {JSON: request_schema(record)}
    if record.handler == "tensor":
        return {JSON: request_schema(record)} | ({NPY: ANY} if len(record.inputs) == 1 else {})
    if record.encoding is not None:
        return {JSON: request_schema(record), "text/plain": TEXT}
    return {record.sample.content_type: ANY, "*/*": ANY}


def answer_types(record: Record) -> dict[str, Schema]:
    """The content types that an answer may have, each with its schema."""
    if record.gives is not None:
        return {record.gives.content_type: answer_schema(record)}
    if is_own(record):
        return {"*/*": ANY}
    named = {JSON: answer_schema(record)}
    return named | ({NPY: ANY} if record.handler == "tensor" and len(record.outputs) == 1 else {})


def body_example(record: Record) -> Any:
    """A JSON body; None if there is no short example."""
    if record.takes is not None:
        return record.takes.example
    if record.handler == "image":
        return {"image": _PICTURE}
    if record.encoding is not None:
        sentence = f"{_SENTENCE} {record.encoding.mask}" if record.encoding.mask else _SENTENCE
        return {name: [sentence] if name == "documents" else sentence for name in _text_inputs(record)}
    if record.handler == "tensor" and _is_short(record):
        return {port.name: _fill(port, _shape(port)) for port in record.inputs}
    return None


def instance_example(record: Record) -> Any:
    """One of V1's instances; None if there is no short example."""
    if record.handler == "image":
        return {"b64": _PICTURE}
    return body_example(record) if JSON in body_types(record) else None


def tensors_example(record: Record) -> list[dict[str, Any]] | None:
    """V2's tensors of one row; None if there is no short example."""
    texts = {"image": _PICTURE} if record.handler == "image" else dict.fromkeys(_text_inputs(record), _SENTENCE)
    if texts:
        return [{"name": name, "datatype": "BYTES", "shape": [1], "data": [text]} for name, text in texts.items()]
    if not record.inputs or not _is_short(record):
        return None
    return [
        {
            "name": port.name,
            "datatype": DATATYPES[port.sent_as],
            "shape": [1, *_shape(port)],
            "data": _fill(port, (math.prod(_shape(port)),)),
        }
        for port in record.inputs
    ]


def model_metadata(record: Record) -> dict[str, Any]:
    """The model's inputs and outputs in V2's terms, each shape with a leading dimension for rows. The inputs of an
    encoder are texts, which the handler turns into the model's token inputs."""
    texts = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in _text_inputs(record)]
    outputs = [_tensor(port) for port in record.outputs]
    if record.labels is not None:
        classes = [port.shape for port in record.outputs if port.name == "top_indices"]
        outputs += [{"name": "top_labels", "datatype": "BYTES", "shape": [-1, *shape]} for shape in classes]
    return {
        "name": record.url_name,
        "versions": [record.version],
        "platform": f"pytorch_{record.compile}",
        "inputs": texts or [_tensor(port) for port in record.inputs],
        "outputs": outputs,
    }


def text_request_schema(text: Writing, form: str) -> Schema:
    """The schema of a request to one of OpenAI's paths: `complete` or `chat`."""
    given: dict[str, Schema] = {"prompt": TEXT | {"minLength": 1}}
    if form == "chat":
        message = object_of({"role": {"enum": ["assistant", "developer", "system", "user"]}, "content": TEXT})
        given = {"messages": array_of(message, minItems=1, maxItems=1000)}
    answer_forms: Schema = {
        "type": "object",
        "properties": {"type": {"enum": ["json_object", "text"]}},
        "required": ["type"],
        "additionalProperties": False,
        "description": "Or `json_schema`, with `json_schema: {name, schema}` beside it: the answer matches that schema",
    }
    settings: dict[str, Schema] = {
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": text.max_tokens},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "stop": array_of({"type": "string", "minLength": 1, "maxLength": 200}, maxItems=4),
        "stream": {"type": "boolean"},
        "response_format": answer_forms,
    }
    return {"type": "object", "properties": given | settings, "required": list(given)}


def text_error_schema() -> Schema:
    """The schema of an error, in OpenAI's form."""
    fields: dict[str, Schema] = {"message": TEXT, "type": TEXT, "param": {}, "code": {}}
    return object_of({"error": {"type": "object", "properties": fields, "required": ["message", "type"]}})


def _text_answer_schema() -> Schema:
    """The schema of a complete answer. Streamed answers are `text/event-stream` instead."""
    end: Schema = {"enum": ["length", "stop", None]}
    choice = {"type": "object", "properties": {"index": _COUNT, "finish_reason": end}, "required": ["finish_reason"]}
    usage = object_of(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _COUNT))
    choices = array_of(choice, minItems=1, maxItems=1)
    return object_of({"id": TEXT, "object": TEXT, "model": TEXT, "choices": choices, "usage": usage})


def _encoder_schema(task: str) -> Schema:
    texts = array_of(TEXT, minItems=1)
    if task == "answer":
        return object_of({"question": TEXT, "context": TEXT})
    if task == "rerank":
        pairs = object_of({"query": TEXT, "documents": texts})
        return pairs | {"properties": pairs["properties"] | {"top_n": {"type": "integer", "minimum": 1}}}
    forms = [TEXT, texts, object_of({"text": {"anyOf": [TEXT, texts]}}, closed=True)]
    return {"anyOf": [*forms, object_of({"input": {"anyOf": [TEXT, texts]}})] if task == "embed" else forms}


def _declared_schema(form: BodyFormat) -> Schema:
    return form.json_schema | ({} if form.example is None else {"examples": [form.example]})


def _nested(shape: tuple[int, ...], item: Schema, varies: int | None = None) -> Schema:
    for place, side in reversed(list(enumerate(shape))):
        item = array_of(item, minItems=1 if place == varies else side, maxItems=side)
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
    return [nested, _nested((image.channels * image.height * image.width,), flat)]


def _text_inputs(record: Record) -> tuple[str, ...]:
    if record.encoding is None:
        return ()
    named = {"answer": ("question", "context"), "rerank": ("query", "documents")}
    return named.get(record.encoding.task, ("text",))


def _tensor(port: Port) -> dict[str, Any]:
    sides = [-1 if place == port.varies else side for place, side in enumerate(port.shape)]
    datatype = DATATYPES.get(port.sent_as, port.dtype.upper())
    return {"name": port.name, "datatype": datatype, "shape": [-1, *sides]}


def _shape(port: Port) -> tuple[int, ...]:
    """The port's shape, with size 1 in the dimension that varies."""
    return tuple(1 if place == port.varies else side for place, side in enumerate(port.shape))


def _is_short(record: Record) -> bool:
    return sum(math.prod(_shape(port)) for port in record.inputs) <= _MAX_VALUES


def _fill(port: Port, shape: tuple[int, ...]) -> Any:
    value: Any = False if port.dtype == "bool" else _least(port)
    if columns := [_least(column) for column in port.by_column()]:
        value, shape = columns * (shape[-1] // len(columns)), shape[:-1]
    for side in reversed(shape):
        value = [value] * side
    return value


def _least(port: Port) -> float | int:
    """Zero, or the allowed value closest to it."""
    value = min(max(0.0, port.min if port.min is not None else 0.0), port.max if port.max is not None else math.inf)
    return value if port.dtype.startswith("float") else int(value)
