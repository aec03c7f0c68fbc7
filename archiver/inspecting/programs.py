"""Inspects torch's programs that are not pickles: TorchScript flatbuffers, and the JSON of `torch.export`.

While loading that JSON, torch evaluates some of its strings as Python: size expressions, guards, and the names that it
generates source code from. So each of these must be plain arithmetic or a plain name."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

# The identifier of a TorchScript flatbuffer, and its offset in the file.
_MOBILE, _MOBILE_AT = b"PTMF", 4
# The beginning of a JSON object, which may have two or four bytes per character.
_OBJECT = re.compile(rb"\A(\xef\xbb\xbf|\xff\xfe|\xfe\xff|\0)*[\s\0]*\{")
_FIRST = 256
# As Python objects, JSON takes up to twenty times its size.
_LONGEST_JSON = 2**26

_FUNCTIONS_TEXT = (
    "Abs Add And CeilDiv CeilToInt CleanDiv Eq Equality Float FloatPow FloatTrueDiv FloorDiv FloorToInt Ge "
    "GreaterThan Identity IntTrueDiv Integer IsNonOverlappingAndDenseIndicator LShift Le LessThan Lt Max Min "
    "Mod ModularIndexing Mul Ne Not Or Piecewise Pow PowByNatural PythonMod RShift Rational RoundDecimal RoundToInt "
    "StrictGreaterThan StrictLessThan Symbol ToFloat TruncToFloat TruncToInt Unequality Where ceiling floor sqrt"
)
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
_TENSOR_METHODS = frozenset({"size", "storage_offset", "stride"})
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.Load),
)
_PLAIN = re.compile(r"[\w.+:-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPERATORS = (
    "abs|add|and_|eq|floordiv|ge|getitem|gt|invert|le|lshift|lt|mod|mul|ne|neg|not_|or_|pos|pow|rshift|sub|truediv|xor"
)
_HIGHER_ORDER = (
    "associative_scan|auto_functionalized|auto_functionalized_v2|cond|flex_attention|invoke_subgraph|map|map_impl|scan|"
    "while_loop|wrap_with_autocast|wrap_with_set_grad_enabled"
)
_TARGET = re.compile(
    r"torch\.ops\.(?!higher_order\.)\w+\.\w+(\.\w+)?"
    rf"|torch\.ops\.higher_order\.({_HIGHER_ORDER})"
    rf"|torch\.(sym|_sym)_\w+|math\.\w+|_operator\.({_OPERATORS})",
    re.ASCII,
)
# An operator that opens any file that it is given.
_OPENS_FILES = "torch.ops.aten.from_file"
_TREES = frozenset({None, "builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict"})
# Strings that torch does not evaluate: it quotes an operator's string arguments, and generates no source code from the
# metadata on where a node comes from.
_TEXTS_TEXT = "as_string as_strings custom from_node nn_module_stack source_fn_stack stack_trace torch_fn"
_TEXTS = frozenset(_TEXTS_TEXT.split())


def find_program(name: str, data: bytes) -> Iterator[str]:
    """A sentence for each part of a program in this file that would run code or cannot be analysed."""
    if data[_MOBILE_AT : _MOBILE_AT + len(_MOBILE)] == _MOBILE:
        yield f"{name}: a TorchScript flatbuffer, which is a program"
    elif _OBJECT.match(data[:_FIRST]) and len(data) > _LONGEST_JSON:
        yield f"{name}: JSON that is too long to be analysed"
    elif _OBJECT.match(data[:_FIRST]):
        yield from (f"{name}: {text}" for text in sorted(set(_find_in_json(data)))[:5])


def _find_in_json(data: bytes) -> Iterator[str]:
    try:
        value = json.loads(data)
        if isinstance(value, dict) and "graph_module" in value:
            yield from _walk(value, "")
    except RecursionError:
        yield "JSON that is nested too deeply to be analysed"
    except ValueError:
        # Not JSON, so nothing loads it as a program.
        return


def _walk(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not _PLAIN.fullmatch(name):
                yield f"a torch.export program with the name `{_short(name)}`"
            yield from _walk(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)
    elif isinstance(value, str) and not _is_harmless(value, key):
        yield f"a torch.export program whose `{key}` is `{_short(value)}`"


def _is_harmless(text: str, key: str) -> bool:
    if key == "expr_str":
        return _is_arithmetic(text, of_tensors=False)
    if key == "guards_code":
        return _is_arithmetic(text, of_tensors=True)
    if key in ("in_spec", "out_spec"):
        return text == "" or _is_plain_tree(text)
    if key in ("as_operator", "target"):
        return bool(_TARGET.fullmatch(text)) and not text.startswith(_OPENS_FILES)
    return key in _TEXTS or bool(_PLAIN.fullmatch(text))


def _is_arithmetic(text: str, *, of_tensors: bool) -> bool:
    """Whether an expression only computes with numbers; with `of_tensors`, also with the shapes of inputs, as in
    `L['x'].size()[0]`."""
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
        return of_tensors and function.attr in _TENSOR_METHODS and not node.args and _is_input(function.value)
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
    """Whether a node is a reference to an input, such as `L['x']` or `L['x']['y'][0]`."""
    while isinstance(node, ast.Subscript):
        if not _is_text(node.slice) and not (isinstance(node.slice, ast.Constant) and type(node.slice.value) is int):
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id == "L"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_NAME.fullmatch(node.value))


def _is_plain_tree(text: str) -> bool:
    """Whether inputs or outputs are nested only in tuples, lists and dictionaries; torch imports other types by
    name."""
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
