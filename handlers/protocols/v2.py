"""The Open Inference Protocol, V2: named tensors in and out, in JSON or, with the binary extension, as bytes after it.

A tensor has the model's own shape, or that with a leading dimension for rows; the tensors of the answer do the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from marina.handlers.arrays import Array, fit_array, from_json
from marina.handlers.protocols.exchange import Exchange, NamedTensor, ProtocolHandler, Row, check_row_count, check_time
from marina.handlers.record import TensorSpec
from marina.handlers.request import Answer, Request
from marina.handlers.validation import Malformed, NonFiniteOutput, Unprocessable, describe_json, parse_json, wrong_names

# The header with the length of the JSON in front of the bytes, in requests and answers.
LENGTH = "inference-header-content-length"
BINARY = "application/octet-stream"
_WHOLE = {f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)}
TYPES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"} | _WHOLE
NAMES = {name: datatype for datatype, name in TYPES.items()}
_MAX_DIMENSIONS = 16


def is_request(value: Mapping[str, Any]) -> bool:
    """True if a JSON object is a V2 request. `inputs` alone does not decide, because a model may have an input of that
    name."""
    inputs = value.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        return False
    return all(isinstance(item, Mapping) and {"name", "shape", "datatype"} <= item.keys() for item in inputs)


def read_exchange(handler: ProtocolHandler, request: Request, until: float) -> Exchange:
    value, bytes_after = _parts(request)
    if not isinstance(value, Mapping) or not is_request(value):
        raise Unprocessable(
            "named tensors are needed",
            field="inputs",
            got=describe_json(value),
            allowed='{"inputs": [{"name", "shape", "datatype", "data"}]}',
        )
    inputs, expected = value["inputs"], handler.tensor_names
    # First, because it would take seconds to read a hundred thousand of them.
    names = [item["name"] for item in inputs]
    if len(names) != len(expected) or any(name not in names for name in expected):
        raise wrong_names(expected, names, f"{len(names)} tensor{'s' * (len(names) > 1)}")
    rows, batched = handler.decode_tensors(_tensors(inputs, bytes_after, handler.max_rows, until), until)
    wanted = _requested_outputs(value)

    def answer(outputs: list[Row]) -> Answer:
        return _answer(
            handler, value.get("id"), wanted, [handler.name_outputs(row) for row in outputs], batched=batched
        )

    return Exchange(rows, answer)


def tensor_rows(
    tensors: Mapping[str, NamedTensor], specs: Sequence[TensorSpec], max_rows: int
) -> tuple[list[Row], bool]:
    """The rows of a request whose tensors are the model's inputs, and whether they had a dimension for rows."""
    columns: list[Array] = []
    counts: set[int | None] = set()
    for spec in specs:
        array = tensors[spec.name].array
        if array is None:
            raise Unprocessable(
                "the type is wrong", field=spec.name, got="BYTES", allowed=NAMES.get(spec.dtype, spec.dtype)
            )
        count = array.shape[0] if array.ndim == len(spec.shape) + 1 else None
        counts.add(count)
        check_row_count(count or 1, max_rows, spec.name)
        shape = spec.shape if count is None else (count, *spec.shape)
        varies = spec.varies if count is None or spec.varies is None else spec.varies + 1
        columns.append(fit_array(array, replace(spec, shape=shape, varies=varies)))
    if len(counts) != 1:
        raise Unprocessable("the inputs differ in their number of rows", field="inputs")
    if counts == {None}:
        return [columns], False
    return [list(row) for row in zip(*columns, strict=True)], True


def _parts(request: Request) -> tuple[object, memoryview]:
    """The JSON value of a body, and the bytes after it."""
    length = request.headers.get(LENGTH)
    if length is None:
        return request.json(), memoryview(b"")
    body = request.body
    if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= len(body)):
        raise Malformed("the length of the JSON is wrong", field=LENGTH, allowed=f"a number up to {len(body)}")
    return parse_json(bytes(body[: int(length)]), max_values=request.max_values), memoryview(body)[int(length) :]


def _tensors(
    inputs: Sequence[Mapping[str, Any]], after: memoryview, max_rows: int, until: float
) -> dict[str, NamedTensor]:
    tensors: dict[str, NamedTensor] = {}
    for item in inputs:
        name, datatype, shape = item["name"], item["datatype"], item["shape"]
        if not isinstance(datatype, str) or (datatype not in TYPES and datatype != "BYTES"):
            got = datatype if isinstance(datatype, str) else describe_json(datatype)
            raise Unprocessable("the datatype is unknown", field="datatype", got=got, allowed=[*TYPES, "BYTES"])
        sides = shape if isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS else None
        if sides is None or not all(type(side) is int and 0 < side < 2**31 for side in sides):
            raise Unprocessable(
                "the shape is wrong", field="shape", got=describe_json(shape), allowed="a list of sizes from 1"
            )
        if datatype == "BYTES":
            # Each element is a row. It would take a second to read a million of them.
            check_row_count(math.prod(sides), max_rows, name)
        size = _parameters(item).get("binary_data_size") if "data" not in item else None
        if size is None:
            tensors[name] = _from_json(name, datatype, tuple(sides), item.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(after):
            given = size if isinstance(size, int) else describe_json(size)
            raise Malformed("the size is wrong", field="binary_data_size", got=given, allowed=f"0 to {len(after)}")
        tensors[name] = _from_bytes(name, datatype, tuple(sides), after[:size], until)
        after = after[size:]
    if len(after):
        raise Malformed("there are bytes after the last tensor", field="body", got=f"{len(after)} bytes")
    return tensors


def _from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> NamedTensor:
    count = math.prod(shape)
    if datatype == "BYTES":
        while isinstance(data, list) and data and all(isinstance(item, list) for item in data):
            data = [element for item in data for element in item]
        if not isinstance(data, list) or len(data) != count or not all(isinstance(item, str) for item in data):
            raise Unprocessable("the data is wrong", field="data", got=describe_json(data), allowed=f"{count} strings")
        elements = tuple(item.encode("utf-8", "surrogatepass") for item in data)
        return NamedTensor(name, shape, elements=elements, encoded=True)
    nested = isinstance(data, list) and bool(data) and isinstance(data[0], list)
    spec = TensorSpec(name, shape if nested or not shape else (count,), TYPES[datatype])
    if not shape and isinstance(data, list) and len(data) == 1:
        data = data[0]
    return NamedTensor(name, shape, from_json(data, spec).reshape(shape))


def _from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview, until: float) -> NamedTensor:
    count = math.prod(shape)
    if datatype != "BYTES":
        dtype = np.dtype(TYPES[datatype]).newbyteorder("<")
        if len(data) != count * dtype.itemsize:
            got, allowed = f"{len(data)} bytes", f"{count * dtype.itemsize} bytes"
            raise Malformed("the binary data does not have its tensor's size", field=name, got=got, allowed=allowed)
        return NamedTensor(name, shape, np.frombuffer(data, dtype).reshape(shape))
    elements: list[bytes] = []
    while len(data) >= 4 and len(elements) < count:
        check_time(until)
        end = 4 + int.from_bytes(data[:4], "little")
        if end > len(data):
            break
        elements.append(bytes(data[4:end]))
        data = data[end:]
    if len(elements) != count or len(data):
        raise Malformed(
            "the binary data does not hold its elements",
            field=name,
            allowed=f"{count} times a length in 4 bytes, and as many bytes",
        )
    return NamedTensor(name, shape, elements=tuple(elements))


def _requested_outputs(value: Mapping[str, Any]) -> tuple[dict[str, bool] | None, bool]:
    """The requested outputs, each with whether it should come as bytes, or None for all outputs; and whether bytes are
    the default."""
    binary = _flag(_parameters(value), "binary_data_output", default=False)
    outputs = value.get("outputs")
    if not outputs:
        return None, binary
    wanted: dict[str, bool] = {}
    for item in outputs if isinstance(outputs, list) else [outputs]:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            raise Unprocessable("an output has no name", field="outputs", got=describe_json(item))
        parameters = _parameters(item)
        if "classification" in parameters:
            raise Unprocessable("classification is not supported", field="outputs", allowed="binary_data")
        wanted[name] = _flag(parameters, "binary_data", default=binary)
    return wanted, binary


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A parameter that is true or false: the text "false" is neither."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        got = describe_json(value)
        raise Unprocessable("the parameter is not a boolean", field=name, got=got, allowed="true or false")
    return value


def _parameters(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `parameters` of a request, an input or an output."""
    parameters = item.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise Unprocessable("parameters must be an object", field="parameters", got=describe_json(parameters))
    return parameters


def _answer(
    handler: ProtocolHandler,
    request_id: object,
    wanted: tuple[dict[str, bool] | None, bool],
    rows: list[Mapping[str, Array | list[str]]],
    *,
    batched: bool,
) -> Answer:
    chosen, binary = wanted
    if chosen is None:
        chosen = dict.fromkeys(rows[0], binary)
    described: list[dict[str, object]] = []
    pieces: list[bytes] = []
    for name, as_bytes in chosen.items():
        if name not in rows[0]:
            raise Unprocessable(
                "the model has no such output", field="outputs", allowed=", ".join(rows[0])
            ).in_one_sentence()
        arrays = [np.asarray(row[name]) for row in rows]
        if len({array.shape for array in arrays}) > 1:
            raise Unprocessable(
                "the outputs of these rows differ in length", field=name, allowed="rows of one length, or one row"
            ).in_one_sentence()
        column = np.stack(arrays) if batched else arrays[0]
        text = column.dtype.kind == "U"
        output: dict[str, object] = {
            "name": name,
            "datatype": "BYTES" if text else NAMES[column.dtype.name],
            "shape": list(column.shape),
        }
        if as_bytes:
            pieces.append(_to_bytes(column, text=text))
            output["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                raise NonFiniteOutput
            output["data"] = column.ravel().tolist()
        described.append(output)
    body = {"model_name": handler.record.name, "model_version": handler.record.version, "outputs": described}
    head = orjson.dumps(body | ({"id": request_id} if isinstance(request_id, str) else {}))
    if not pieces:
        return Answer(head)
    return Answer(b"".join((head, *pieces)), BINARY, {"Inference-Header-Content-Length": str(len(head))})


def _to_bytes(column: Array, *, text: bool) -> bytes:
    if not text:
        return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
    elements = [item.encode() for item in column.ravel().tolist()]
    return b"".join(len(item).to_bytes(4, "little") + item for item in elements)
