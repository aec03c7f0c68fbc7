"""The names that a pickle may import: exactly those that torch's weights-only unpickler allows by default.

They are listed here because `inspect` runs without torch; a test compares them with torch's own."""

import _compat_pickle

_NUMBERS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_COMPLEX = ("ComplexDouble", "ComplexFloat")
_QUANTISED = ("QInt32", "QInt8", "QUInt2x4", "QUInt4x2", "QUInt8")
_DTYPES = (
    "bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool complex128 complex32 complex64 float16 float32 "
    "float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int1 int16 "
    "int2 int3 int32 int4 int5 int6 int64 int7 int8 qint32 qint8 quint2x4 quint4x2 quint8 uint1 uint16 uint2 uint3 "
    "uint32 uint4 uint5 uint6 uint64 uint7 uint8 per_channel_affine per_channel_affine_float_qparams "
    "per_channel_symmetric per_tensor_affine per_tensor_symmetric"
)
_REBUILDS = (
    "device_tensor_from_cpu_tensor device_tensor_from_numpy meta_tensor_no_storage nested_tensor parameter "
    "parameter_with_state qtensor sparse_tensor tensor tensor_v2 tensor_v3 wrapper_subclass"
)

ALLOWED = frozenset(
    {
        ("_codecs", "encode"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "set"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "Tensor"),
        ("torch", "device"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.nn.parameter", "Parameter"),
        ("torch.serialization", "_get_layout"),
        ("torch.storage", "TypedStorage"),
        ("torch.storage", "UntypedStorage"),
        *(("torch", name) for name in _DTYPES.split()),
        *(("torch._utils", f"_rebuild_{name}") for name in _REBUILDS.split()),
        *(("torch", f"{kind}Storage") for kind in (*_NUMBERS, *_COMPLEX, *_QUANTISED)),
        *(("torch.cuda", f"{kind}Storage") for kind in (*_NUMBERS, *_COMPLEX)),
        *((module, f"{kind}Tensor") for module in ("torch", "torch.cuda") for kind in _NUMBERS),
        *(
            (module, f"{kind}Tensor")
            for module in ("torch.sparse", "torch.cuda.sparse")
            for kind in _NUMBERS
            if kind != "Bool"
        ),
    }
)


def resolve_import(module: str, name: str, protocol: int) -> tuple[str, str]:
    """The name that is really imported: old protocols map Python 2 names to those of Python 3."""
    if protocol >= 3:
        return module, name
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name
