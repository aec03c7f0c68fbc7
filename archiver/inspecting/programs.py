"""Programs of torch that are not pickles: flatbuffers of TorchScript, and the JSON of `torch.export`.

torch evaluates texts of that JSON as Python while it loads it: the expressions of sizes, the guards, and the names that
it writes source from. So each of them has to be plainly arithmetic, or plainly a name.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

# What a flatbuffer says of itself, behind the place of its root.
_MOBILE, _MOBILE_AT = b"PTMF", 4
# JSON may be written in two or four bytes a character.
_OBJECT = re.compile(rb"\A(\xef\xbb\xbf|\xff\xfe|\xfe\xff|\0)*[\s\0]*\{")
_FIRST = 256

_FUNCTIONS_TEXT = (
    "Abs Add And CeilDiv CeilToInt CleanDiv Eq Equality Float FloatPow FloatTrueDiv FloorDiv FloorToInt Ge "
    "GreaterThan Identity IntTrueDiv Integer IsNonOverlappingAndDenseIndicator LShift Le LessThan Lt Max Min "
    "Mod ModularIndexing Mul Ne Not Or Piecewise Pow PowByNatural PythonMod RShift Rational RoundDecimal RoundToInt "
    "StrictGreaterThan StrictLessThan Symbol ToFloat TruncToFloat TruncToInt Unequality Where ceiling floor sqrt"
)
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
_OF_A_TENSOR = frozenset({"size", "storage_offset", "stride"})
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.Load),
)
_PLAIN = re.compile(r"[\w.+:-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPERATORS_TEXT = (
    "abs add and_ eq floordiv ge getitem gt invert le lshift lt mod mul ne neg not_ or_ pos pow rshift sub truediv xor"
)
_HIGHER_TEXT = (
    "associative_scan auto_functionalized auto_functionalized_v2 cond flex_attention invoke_subgraph map map_impl scan "
    "while_loop wrap_with_autocast wrap_with_set_grad_enabled"
)
_TARGET = re.compile(
    rf"torch\.ops\.(?!higher_order\.)\w+\.\w+(\.\w+)?|torch\.ops\.higher_order\.({'|'.join(_HIGHER_TEXT.split())})|torch\.(sym|_sym)_\w+|math\.\w+|_operator\.({'|'.join(_OPERATORS_TEXT.split())})",
    re.ASCII,
)
# An operator that opens the file it is told.
_REACHING = "torch.ops.aten.from_file"
_TREES = frozenset({None, "builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict"})
# Texts that stay texts: an operator's arguments are written with their quotes, and no source is made of where a node
# comes from.
_TEXTS_TEXT = "as_string as_strings custom from_node nn_module_stack source_fn_stack stack_trace torch_fn"
_TEXTS = frozenset(_TEXTS_TEXT.split())


def find_program(name: str, data: bytes) -> Iterator[str]:
    """What a program in this file holds that would be run, or cannot be followed."""
    if data[_MOBILE_AT : _MOBILE_AT + len(_MOBILE)] == _MOBILE:
        yield f"{name}: a flatbuffer of TorchScript, which is a program"
    elif _OBJECT.match(data[:_FIRST]):
        yield from (f"{name}: {text}" for text in sorted(set(_of_json(data)))[:5])


def _of_json(data: bytes) -> Iterator[str]:
    try:
        value = json.loads(data)
        if isinstance(value, dict) and "graph_module" in value:
            yield from _walk(value, "")
    except RecursionError:
        yield "JSON that is nested too deep to be followed"
    except ValueError:
        # Nobody loads it as a program.
        return


def _walk(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not _PLAIN.fullmatch(name):
                yield f"a program of torch.export with the name `{_short(name)}`"
            yield from _walk(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)
    elif isinstance(value, str) and not _is_harmless(value, key):
        yield f"a program of torch.export whose `{key}` is `{_short(value)}`"


def _is_harmless(text: str, key: str) -> bool:
    if key == "expr_str":
        return _is_arithmetic(text, of_tensors=False)
    if key == "guards_code":
        return _is_arithmetic(text, of_tensors=True)
    if key in ("in_spec", "out_spec"):
        return text == "" or _is_plain_tree(text)
    if key in ("as_operator", "target"):
        return bool(_TARGET.fullmatch(text)) and not text.startswith(_REACHING)
    return key in _TEXTS or bool(_PLAIN.fullmatch(text))


def _is_arithmetic(text: str, *, of_tensors: bool) -> bool:
    """Whether nothing but numbers is computed; `of_tensors`: from the shapes of inputs, `L['x'].size()[0]`."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _computes(tree, of_tensors)


def _computes(node: ast.AST, of_tensors: bool) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Call):
        return _is_known_call(node, of_tensors)
    if isinstance(node, ast.Subscript):
        return of_tensors and (_is_input(node) or all(_computes(part, True) for part in (node.value, node.slice)))
    return isinstance(node, _ARITHMETIC) and all(_computes(part, of_tensors) for part in ast.iter_child_nodes(node))


def _is_known_call(node: ast.Call, of_tensors: bool) -> bool:
    function = node.func
    if isinstance(function, ast.Attribute):
        return of_tensors and function.attr in _OF_A_TENSOR and not node.args and _is_input(function.value)
    if not isinstance(function, ast.Name) or function.id not in _FUNCTIONS:
        return False
    if any(
        not isinstance(word.value, ast.Constant) or not isinstance(word.value.value, bool) for word in node.keywords
    ):
        return False
    if function.id == "Symbol":
        return len(node.args) == 1 and _is_text(node.args[0])
    return all(_computes(argument, of_tensors) for argument in node.args)


def _is_input(node: ast.AST) -> bool:
    """`L['x']`, `L['x']['y'][0]`."""
    while isinstance(node, ast.Subscript):
        if not _is_text(node.slice) and not (isinstance(node.slice, ast.Constant) and type(node.slice.value) is int):
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id == "L"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_NAME.fullmatch(node.value))


def _is_plain_tree(text: str) -> bool:
    """Whether inputs or outputs lie in tuples, lists and dictionaries only: other kinds import what they name."""
    try:
        version, tree = json.loads(text)
        return isinstance(version, int) and _is_plain_branch(tree)
    except (ValueError, TypeError, RecursionError):
        return False


def _is_plain_branch(tree: Any) -> bool:
    if not isinstance(tree, dict) or set(tree) - {"type", "context", "children_spec"} or tree.get("type") not in _TREES:
        return False
    keys = json.loads(tree.get("context") or "null")
    plain = keys is None or (
        isinstance(keys, list) and all(isinstance(key, str) and _PLAIN.fullmatch(key) for key in keys)
    )
    return plain and all(_is_plain_branch(inner) for inner in tree.get("children_spec", ()))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
