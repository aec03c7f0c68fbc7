"""Turns JSON values and `.npy` bodies into arrays of exactly the declared shape and type, and arrays into answers.

JSON lists are checked against the expected shape before numpy sees them: numpy would accept `"1.5"`, `true` and ragged
lists as numbers, and would turn a list with one long string into gigabytes. `.npy` headers are matched by patterns, not
evaluated."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from marina.handlers.record import TensorSpec
from marina.handlers.validation import Malformed, NonFiniteOutput, TooLarge, Unprocessable, describe_json

Array = npt.NDArray[Any]

_LEAVES: dict[str, set[type]] = {"f": {int, float}, "i": {int}, "u": {int}, "b": {bool}}
_LEAF_NAMES = {"f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "booleans"}
_MAX_NPY_HEADER = 4096
_DESCR = re.compile(rb"'descr':\s*'([<>|=]?[fiub]\d{1,2})'")
_FORTRAN = re.compile(rb"'fortran_order':\s*(True|False)")
_SHAPE = re.compile(rb"'shape':\s*\(([\d\s,]{0,200})\)")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of an input with this declared type: numpy has no bfloat16, so float32 stands in for it."""
    return np.dtype("float32" if name == "bfloat16" else name)


def from_json(value: object, spec: TensorSpec) -> Array:
    """Converts a value of the declared shape, or a list whose only item is one."""
    dtype = numpy_dtype(spec.dtype)
    if isinstance(value, list) and len(value) == 1 and _depth(value) == len(spec.shape) + 1:
        value = value[0]
    _check_nested(value, spec.shape, dtype.kind, spec.name, spec.varies)
    try:
        # The range check finds an overflow to infinity, and has a better message than numpy.
        with np.errstate(over="ignore"):
            array = np.array(value, dtype=np.int64 if dtype.kind in "iu" and dtype != np.uint64 else dtype)
    except OverflowError as err:
        raise Unprocessable("a number is out of range", field=spec.name, allowed=_range_text(spec)) from err
    return fit_array(array, spec)


def _depth(value: object) -> int:
    """How deeply lists are nested, judged by the first item of each."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return depth


def _check_nested(value: object, shape: Sequence[int], kind: str, where: str, varies: int | None) -> None:
    """Checks a nested list. `varies` is the dimension that varies, counted from here: 0 is this list."""
    if not shape:
        _check_leaves([value], kind, where)
        return
    size = f"1 to {shape[0]}" if varies == 0 else shape[0]
    expected = f"a list of {size} {_LEAF_NAMES[kind] if len(shape) == 1 else 'lists'}"
    if not isinstance(value, list) or not (1 if varies == 0 else shape[0]) <= len(value) <= shape[0]:
        raise Unprocessable("the shape is wrong", field=where, got=describe_json(value), allowed=expected)
    if len(shape) == 1:
        _check_leaves(value, kind, where)
        return
    inner = None if varies is None else varies - 1
    for index, item in enumerate(value):
        _check_nested(item, shape[1:], kind, f"{where}[{index}]", inner)


def _check_leaves(values: Sequence[object], kind: str, where: str) -> None:
    if not set(map(type, values)) <= _LEAVES[kind]:
        wrong = next(value for value in values if type(value) not in _LEAVES[kind])
        got = describe_json(wrong)
        if isinstance(wrong, float):
            got = "a fraction" if abs(wrong) < 2**63 else "a number beyond 64 bits"
        raise Unprocessable("a value is of the wrong type", field=where, got=got, allowed=_LEAF_NAMES[kind])


def fit_array(array: Array, spec: TensorSpec) -> Array:
    """Converts an array to the declared type, if that costs nothing but precision, and checks its shape and range. A
    leading dimension of size 1 is removed."""
    dtype = numpy_dtype(spec.dtype)
    if len(array.shape) == len(spec.shape) + 1 and array.shape[0] == 1 and spec.fits(array.shape[1:]):
        array = array[0]
    if not spec.fits(array.shape):
        raise Unprocessable(
            "the shape is wrong", field=spec.name, got=str(list(array.shape)), allowed=spec.shape_text()
        )
    if not _may_become(array.dtype, dtype):
        raise Unprocessable("the type is wrong", field=spec.name, got=array.dtype.name, allowed=dtype.name)
    if dtype.kind == "f":
        # Before the check, so that a value on the limit is rounded as the limit is. Too large a value becomes infinite.
        with np.errstate(over="ignore"):
            array = array.astype(dtype, copy=False)
    # A boolean of `.npy` or V2 may be any byte, and compiled code would compute with it.
    check_range(array.view(np.uint8) if dtype.kind == "b" else array, spec)
    return array.astype(dtype, copy=False)


def _may_become(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether this conversion is allowed: integers to any number type (their range is checked later), but never
    booleans to numbers or numbers to booleans."""
    if "b" in (source.kind, target.kind):
        return source.kind == target.kind
    return source.kind in "iu" or np.can_cast(source, target, "same_kind")


def check_range(array: Array, spec: TensorSpec) -> None:
    """Raises Unprocessable if a value is beyond the limits of its input or column, or of the declared type."""
    for column, (least, most) in enumerate(spec.columns or ()):
        own = replace(spec, name=f"{spec.name}[{column}]", min=least, max=most, columns=None)
        check_range(array[..., column], own)
    # min and max of an array with NaN are NaN, so these two passes find every wrong value.
    lowest, highest = array.min().item(), array.max().item()
    low, high = _limits(spec)
    if not (low <= lowest and highest <= high):
        got = highest if lowest >= low or lowest != lowest else lowest
        raise Unprocessable("a number is out of range", field=spec.name, got=got, allowed=_range_text(spec))


def _limits(spec: TensorSpec) -> tuple[float, float]:
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    low = max(info.min, spec.min) if spec.min is not None else info.min
    high = min(info.max, spec.max) if spec.max is not None else info.max
    return (int(low), int(high)) if dtype.kind in "iu" else (float(dtype.type(low)), float(dtype.type(high)))


def _range_text(spec: TensorSpec) -> str:
    low, high = _limits(spec)
    return f"{low:g} to {high:g}" if isinstance(low, float) else f"{low} to {high}"


def from_npy(body: bytes | bytearray, *, max_bytes: int, field: str) -> Array:
    """Reads an array of any numeric type and byte order, as a view of the body. Object arrays are refused, so nothing
    is unpickled."""
    header, start = _npy_header(body)
    descr, fortran, sides = _DESCR.search(header), _FORTRAN.search(header), _SHAPE.search(header)
    if not (descr and fortran and sides):
        raise Malformed(
            "the .npy header is not that of a numeric array", field=field, allowed="a plain array of numbers"
        )
    try:
        dtype = np.dtype(descr[1].decode())
        shape = [int(side) for side in sides[1].split(b",") if side.strip()]
    except (TypeError, ValueError) as err:
        raise Malformed("the .npy type or shape is not valid", field=field) from err
    declared = math.prod(shape) * dtype.itemsize
    if len(shape) > 32 or max([declared, *shape]) > max_bytes:
        raise TooLarge(
            "the .npy header declares too large an array",
            field=field,
            got="a larger array",
            allowed=f"at most {max_bytes} bytes",
        )
    if declared != len(body) - start:
        raise Malformed(
            "the .npy body is not as long as its header says",
            field=field,
            got=f"{len(body) - start} bytes",
            allowed=f"{declared} bytes",
        )
    array = np.frombuffer(body, dtype, offset=start)
    return array.reshape(shape[::-1]).T if fortran[1] == b"True" else array.reshape(shape)


def _npy_header(body: bytes | bytearray) -> tuple[bytes, int]:
    """The header's text and the offset of the data. In version 1 the length takes 2 bytes, in versions 2 and 3 it takes
    4."""
    start = 10 if body[6:7] == b"\x01" else 12
    length = int.from_bytes(body[8:start], "little")
    if body[6:7] not in (b"\x01", b"\x02", b"\x03") or length > _MAX_NPY_HEADER or len(body) < start + length:
        raise Malformed("the .npy header is broken", field="body", allowed="format version 1, 2 or 3")
    return bytes(body[start : start + length]), start + length


def to_npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def to_json(values: Mapping[str, Any]) -> bytes:
    """Raises NonFiniteOutput for NaN and infinity: orjson would write them as null, which looks like a missing
    value."""
    for value in values.values():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise NonFiniteOutput
    return orjson.dumps(values, default=np.ndarray.tolist, option=orjson.OPT_SERIALIZE_NUMPY)
