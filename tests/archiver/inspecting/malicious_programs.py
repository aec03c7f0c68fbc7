"""Programs of `torch.export` as attackers change them: strings that torch runs as Python while it loads them."""

import io
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from malicious import Members, zipped


@cache
def _exported() -> Members:
    class Grows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0] * 2, -1) + x.shape[0] // 2

    buffer, batch = io.BytesIO(), torch.export.Dim("batch", min=2, max=64)
    torch.export.save(torch.export.export(Grows(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},)), buffer)
    with zipfile.ZipFile(buffer) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def exported(change: Callable[[str], str] = str) -> bytes:
    """A program of `torch.export` with its JSON changed."""
    files = _exported()
    return zipped({n: change(d.decode()).encode() if n.endswith("model.json") else d for n, d in files.items()})


def programs(mark: Path) -> dict[str, bytes]:
    """Programs that would run code, by where the code is."""
    run = f"__import__('os').system('touch {mark}')"
    size, old = "Symbol('s77', positive=True, integer=True)", '"guards_code": []'
    changes = {
        "a size": (f'"expr_str": "{size}"', f'"expr_str": "{run}"'),
        "a size, in a function": (f'"expr_str": "{size}"', f'"expr_str": "Max(1, {run})"'),
        "a size, in a text": (f'"expr_str": "{size}"', f'"expr_str": "Max(1, \\"{run}\\")"'),
        "a size, in the text of a symbol": (f'"expr_str": "{size}"', f'"expr_str": "Symbol(\\"{run}\\")"'),
        "a size, by another name": (f'"expr_str": "{size}"', f'"expr\\u005fstr": "{run}"'),
        "a size, by an attribute": (f'"expr_str": "{size}"', '"expr_str": "Integer.__class__(1)"'),
        "a size that is a lambda": (f'"expr_str": "{size}"', '"expr_str": "(lambda: 1)()"'),
        "a size of a tensor called metadata": ('"tensor_values": {"x"', f'"tensor_values": {{"metadata": "{run}", "x"'),
        "a guard": (old, f'"guards_code": ["{run}"]'),
        "a guard, behind a size": (old, f'"guards_code": ["L[\'x\'].size()[0] == 3 or {run}"]'),
        "a name": ('"name": "x"', f'"name": "x={run}"'),
        "a target": ('"target": "torch.ops.aten.reshape.default"', '"target": "torch.os.system"'),
        "a target that reads a file": ('"torch.ops.aten.reshape.default"', '"torch.ops.aten.from_file.default"'),
        "a tree that imports": ("builtins.dict", "collections.defaultdict"),
        "a tree with a key that imports": (r"\"context\": \"[]\"", r"\"context\": \"[{}]\""),
    }
    return {name: exported(partial(_changed, *change)) for name, change in changes.items()} | {
        "in two bytes a character": zipped(
            {"a": _changed(f'"expr_str": "{size}"', f'"expr_str": "{run}"', _json()).encode("utf-16")}
        ),
        "nested too deep": zipped({"a": b'{"graph_module":' * 100_000}),
    }


def _json() -> str:
    return next(data.decode() for name, data in _exported().items() if name.endswith("model.json"))


def _changed(old: str, new: str, text: str) -> str:
    assert old in text, old
    return text.replace(old, new)
