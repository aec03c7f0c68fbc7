"""The arguments of a network's `forward`, and the inputs that a user gives by `--input`."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import yaml
from pydantic import ValidationError
from torch import nn

from marina.archiver.inferring.inferred import Input
from marina.config.errors import InputError, listed
from marina.config.sections import Dtype, Tensor

FORM = "NAME:DTYPE:SHAPE such as `ids:int64:128` or `ids:int64:{max: 512}`, or NAME:mask_of:INPUT"
# Optional arguments that get an input nevertheless, because a model for varying lengths needs its mask.
_MASKS = ("attention_mask", "mask")
_DTYPES = {
    "BoolTensor": "bool",
    "DoubleTensor": "float64",
    "FloatTensor": "float32",
    "IntTensor": "int32",
    "LongTensor": "int64",
}


@dataclass(frozen=True)
class Argument:
    """One argument of `forward` that gets a tensor."""

    name: str
    dtype: str | None = None
    """From its annotation; None if that names no type."""

    @property
    def is_mask(self) -> bool:
        return "mask" in self.name

    @property
    def is_sequence(self) -> bool:
        return any(word in self.name for word in ("ids", "seq", "text", "token", "word"))

    @property
    def is_sound(self) -> bool:
        return any(word in self.name for word in ("audio", "input_values", "pcm", "samples", "signal", "sound", "wav"))

    @property
    def is_length(self) -> bool:
        return self.name.startswith(("len", "num_"))


def is_state(name: str) -> bool:
    """Whether an argument is named like the state of a recurrent layer."""
    short = re.sub(r"[_0-9]", "", name)
    return short in ("c", "cn", "cx", "h", "hc", "hn", "hx") or any(
        word in name for word in ("cell", "hidden", "state")
    )


@dataclass(frozen=True)
class GivenInput:
    """An input that the user gives by `--input`."""

    name: str
    tensor: Tensor

    def as_input(self) -> Input:
        """A mask gets the length of its sequence later, for which -1 stands."""
        tensor = self.tensor
        if tensor.mask_of is not None:
            named = "dtype" in tensor.model_fields_set
            return Input((-1,), tensor.dtype if named else "bool")
        varying = next((at for at, side in enumerate(tensor.shape) if not isinstance(side, int)), None)
        return Input(tensor.largest_shape, tensor.dtype, varying)


def parse_input_option(text: str) -> GivenInput:
    """Parses the value of `--input`, `NAME:DTYPE:SHAPE` with a shape as in the spec; InputError if it is malformed."""
    name, _, rest = text.partition(":")
    kind, _, shape = rest.partition(":")
    fields: object = {"mask_of": shape.strip()}
    try:
        if kind != "mask_of":
            sides = yaml.safe_load(shape if shape.lstrip().startswith("[") else f"[{shape}]")
            fields = {"dtype": kind, "shape": sides}
        if not name.isidentifier() or ":" not in rest:
            raise ValueError(text)
        return GivenInput(name, Tensor.model_validate_json(json.dumps(fields)))
    except ValidationError as err:
        first = err.errors()[0]
        allowed = f"allowed: {listed(get_args(Dtype))}" if first["loc"][0] == "dtype" else f"allowed: {FORM}"
        raise InputError(f"`--input`: got `{text}`, {allowed}") from err
    except (TypeError, ValueError, yaml.YAMLError) as err:
        raise InputError(f"`--input`: got `{text}`, allowed: {FORM}") from err


def forward_arguments(network: nn.Module, given: Sequence[GivenInput]) -> list[Argument]:
    """The arguments of `forward` that get a tensor, in their order; InputError if one of them is not a tensor."""
    every = inspect.signature(network.forward).parameters.values()
    if [entry.kind for entry in every] == [inspect.Parameter.VAR_KEYWORD]:
        text = f"`--source`: `forward` takes only `**{next(iter(every)).name}`, allowed: tensors, each with a name"
        raise InputError(
            text, hint="a subclass with `def forward(self, x): return super().forward(…=x)`, with its name"
        )
    parameters = [entry for entry in every if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)]
    arguments: list[Argument] = []
    names = {value.name for value in given}
    # Models of `transformers` call all arguments optional, but need the first.
    all_optional = all(parameter.default is not parameter.empty for parameter in parameters)
    skipped = False
    for parameter in parameters:
        needed = parameter.default is parameter.empty or (all_optional and not names and parameter is parameters[0])
        if parameter.kind is parameter.KEYWORD_ONLY:
            is_filled = needed
        else:
            is_filled = not skipped and (needed or parameter.name in names or parameter.name in _MASKS)
            skipped = not is_filled
        if is_filled:
            arguments.append(_argument(network, parameter))
    if not arguments and given:
        return [Argument(value.name) for value in given]
    return arguments or [Argument("x")]


def match_given(names: list[str], given: Sequence[GivenInput]) -> dict[int, GivenInput]:
    """The position of the argument that each `--input` is for: by name, or by order if all are given."""
    if all(value.name in names for value in given):
        return {names.index(value.name): value for value in given}
    if len(given) == len(names):
        return dict(enumerate(given))
    unknown = next(value.name for value in given if value.name not in names)
    raise InputError(f"`--input`: got `{unknown}`, allowed: {listed(names)}, the arguments of `forward`")


def _argument(network: nn.Module, parameter: inspect.Parameter) -> Argument:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    plain = name.rpartition(".")[2]
    if keys := _keys_read(network, parameter.name):
        text = f"`--source`: `forward` takes `{parameter.name}`, a dictionary of {listed(keys)}, allowed: tensors"
        raise InputError(text, hint=_wrapper_class(network, parameter.name, keys))
    if plain.partition("[")[0].lower() in ("bool", "dict", "float", "int", "list", "str"):
        text = f"`--source`: `forward` takes `{parameter.name}: {name}`, allowed: tensors"
        hint = f"write a wrapper module whose `forward` takes tensors and fills in `{parameter.name}`"
        raise InputError(text, hint=hint)
    return Argument(parameter.name, _DTYPES.get(plain))


def _keys_read(network: nn.Module, argument: str) -> list[str]:
    """The keys that `forward` reads from an argument, if that is a dictionary, in the order of the code."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(network).forward)))
    except (OSError, SyntaxError, TypeError):
        return []
    keys = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Constant)
        ):
            keys.append((node.value.id, node.slice.value, node.lineno, node.col_offset))
        if isinstance(node, ast.Name) and node.id == argument and isinstance(node.ctx, ast.Store):
            return []
    read = sorted((line, column, key) for name, key, line, column in keys if name == argument and isinstance(key, str))
    return [key for key in dict.fromkeys(key for _, _, key in read) if key.isidentifier()]


def _wrapper_class(network: nn.Module, argument: str, keys: Sequence[str]) -> str:
    """The source of a subclass whose `forward` takes the values of the dictionary as separate arguments."""
    others = [name for name in inspect.signature(network.forward).parameters if name != argument]
    given = ", ".join([*keys, *others])
    dictionary = f"{{{', '.join(f'{chr(34)}{key}{chr(34)}: {key}' for key in keys)}}}"
    called = ", ".join([f"{argument}={dictionary}", *(f"{name}={name}" for name in others)])
    head = f"class Rows({type(network).__name__}):\n    def forward(self, {given}):"
    return f"{head}\n        return super().forward({called})"
