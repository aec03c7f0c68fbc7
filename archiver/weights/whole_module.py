"""Loads a module that was saved whole, by `torch.save(model)` or `torch.jit.save`: only of a file that the user trusts,
because that runs code of the classes that it names.

Meanwhile nothing can be connected to and no program started. What it would import is known before, by reading the file
without running it."""

import ast
import copy
import inspect
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from marina.archiver.user_code import import_beside, running_user_code
from marina.archiver.weights import stand_ins
from marina.archiver.weights.reading import kind_of_file
from marina.config.errors import SourceError, listed

# Keys under which a checkpoint usually has its module.
_KEYS = ("model", "network", "net", "module", "ema")
# What trainings put around a network, and the attribute that it has there.
_WRAPPED = {
    "AveragedModel": "module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
# What Python reports when code opens a connection or starts a program.
_REFUSED = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "socket.", "subprocess.")
_MAIN = "__main__"
_guarded = threading.local()


def load_module(where: str, file: Path, *, trust: bool) -> tuple[nn.Module, tuple[str, ...]]:
    """The module in a file that was saved whole, and notes for the user. SourceError if there is none, or if it is not
    trusted."""
    if kind_of_file(where, file) == "TorchScript":
        _check_trust(where, file, "TorchScript, a program that torch compiles and runs", trust=trust)
        with running_user_code(f"{where}: `{file}`"):
            scripted = torch.jit.load(file, map_location="cpu")  # type: ignore[no-untyped-call]
            return _as_python(scripted), (
                f"`{file.name}` is TorchScript, which is compiled for one row and one size at a time",
            )
    names = _names_in(where, file)
    theirs = sorted({name.rpartition(".")[0] for name in names if not name.startswith("torch.")})
    imported = f"imports {listed(theirs)}" if theirs else "imports nothing but torch"
    _check_trust(where, file, f"a pickle: loading it {imported}, and runs what they and the file want", trust=trust)
    with running_user_code(f"{where}: `{file}`"), _guard():
        reader = SimpleNamespace(__name__="reader", Unpickler=_reader(where, file), load=pickle.load)
        content = torch.load(file, map_location="cpu", pickle_module=reader, weights_only=False)
    key, network = _chosen(where, file, content)
    while (inner := getattr(network, _WRAPPED.get(type(network).__name__, ""), None)) is not None:
        network = inner
    notes: tuple[str, ...] = (f"loading `{file.name}` {imported}",)
    if key:
        notes += (f"the module under `{key}` of `{file.name}` is used",)
    return network.float(), notes


def _as_python(network: torch.jit.ScriptModule) -> nn.Module:
    """A TorchScript module in a module of Python that takes the same arguments, which can be exported."""

    def forward(self: Any, *inputs: torch.Tensor) -> Any:
        return self.network(*inputs)

    given = network.forward.schema.arguments[1:]  # type: ignore[attr-defined]
    names = ["self", *(argument.name for argument in given if not argument.has_default_value())]
    ordered = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, ordered) for name in names])  # type: ignore[attr-defined]
    module: nn.Module = type("Scripted", (nn.Module,), {"forward": forward})()
    module.network = network
    return module


def is_scripted(network: nn.Module) -> bool:
    """Whether a module is TorchScript."""
    return isinstance(getattr(network, "network", None), torch.jit.ScriptModule)


def traced(graph: nn.Module, inputs: tuple[torch.Tensor, ...]) -> nn.Module:
    """The graph, with its TorchScript network as the operators that it computes for inputs of these shapes."""
    seen: list[tuple[Any, ...]] = []
    traceable = copy.copy(graph)
    traceable._modules = dict(graph._modules)
    hook = graph.get_submodule("network").register_forward_pre_hook(lambda _, given: seen.append(given))
    try:
        graph(*inputs)
    finally:
        hook.remove()
    traceable.network = make_fx(graph.get_submodule("network"))(*seen[0])
    return traceable


def _check_trust(where: str, file: Path, what: str, *, trust: bool) -> None:
    if not trust:
        raise SourceError(
            f"{where}: `{file}` is {what}",
            hint="--trust-pickle, if you trust the file; or --source ./model.py:Net --weights "
            f"{file}, which reads its numbers and runs nothing of it",
        )


def _names_in(where: str, file: Path) -> set[str]:
    """Every class and function that loading the file would import, besides what makes tensors."""
    names: set[str] = set()

    class Lister(stand_ins.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, stand_ins.StandIn):
                names.add(found.name)
            return found

    reader = SimpleNamespace(__name__="reader", Unpickler=Lister, load=stand_ins.load)
    try:
        content = torch.load(file, map_location="cpu", pickle_module=reader, weights_only=False)
    except Exception as err:
        raise SourceError(f"{where}: `{file}` cannot be read: {type(err).__name__}: {err}") from err
    parts = [content, *content.values()] if isinstance(content, dict) else [content]
    if not any(map(stand_ins.is_module, parts)):
        raise SourceError(
            f"{where}: `{file}` holds no module, only weights or other values",
            hint=f"--source ./model.py:Net --weights {file}, with the code of the model",
        )
    return names


def _reader(where: str, file: Path) -> type[pickle.Unpickler]:
    """Python's unpickler, which also finds classes beside the file: those of a script have no module's name."""

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            with _guard(on=False):
                if module == _MAIN:
                    return getattr(_module_that_defines(where, file, name), name)
                import_beside(file)
                try:
                    return super().find_class(module, name)
                except (AttributeError, ImportError) as err:
                    raise SourceError(
                        f"{where}: `{file}` needs `{module}.{name}`: {err}",
                        hint=f"put its code beside the file, as {module.replace('.', '/')}.py, or install its package",
                    ) from err

    return Reader


def _module_that_defines(where: str, file: Path, name: str) -> Any:
    """The module of the only Python file beside this one that defines a class of this name."""
    defining = [path for path in sorted(file.parent.glob("*.py")) if name in _classes(path)]
    if len(defining) != 1:
        found = listed(path.name for path in defining) or "none"
        raise SourceError(
            f"{where}: `{file}` needs the class `{name}` of the script or notebook that saved it, and files beside it "
            f"that define it: {found}, allowed: one",
            hint=f"put the class `{name}` into {file.parent}/model.py",
        )
    return import_beside(defining[0])


def _classes(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _chosen(where: str, file: Path, content: Any) -> tuple[str, nn.Module]:
    """The module of a file: it itself, the only one in it, or the one under the most usual key."""
    if isinstance(content, nn.Module):
        return "", content
    modules = {key: value for key, value in content.items() if isinstance(value, nn.Module)}
    if type(modules.get("ema")).__module__.startswith("ultralytics."):
        return "ema", modules["ema"]  # as ultralytics itself chooses
    usual = next((key for key in _KEYS if key in modules), next(iter(modules)) if len(modules) == 1 else None)
    if usual is None:
        chosen = f"torch.load('{file}', weights_only=False)['{next(iter(modules))}']"
        raise SourceError(
            f"{where}: `{file}` holds the modules {listed(modules)}, allowed: one, or one under {listed(_KEYS)}",
            hint=f"torch.save({chosen}, '{file.stem}-module.pt')",
        )
    return usual, modules[usual]


@contextmanager
def _guard(*, on: bool = True) -> Iterator[None]:
    """Refuses connections and programs that this thread would open and start, unless they are asked for by an
    import."""
    if not hasattr(_guard, "installed"):
        sys.addaudithook(_audit)
        _guard.installed = True  # type: ignore[attr-defined]
    before, _guarded.on = getattr(_guarded, "on", False), on
    try:
        yield
    finally:
        _guarded.on = before


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if getattr(_guarded, "on", False) and event.startswith(_REFUSED):
        raise PermissionError(f"`{event}` while the file was loaded, which may neither connect nor start programs")
