"""What `--source` names: of a file its only model, and what to type for a file that holds none."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from config.errors import InputError, SourceError, listed

_WEIGHTS = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")
_USUAL = ("build", "build_model", "create_model", "get_model", "make_model", "model")


def resolve_source(source: str) -> str:
    """The source with the name of the model in a Python file, when there is one to choose."""
    if source.endswith(_WEIGHTS):
        text = f"`--source`: `{source}` holds weights, but no model"
        raise InputError(text, hint=f"--source ./model.py:Net --weights {source}")
    if Path(source).is_dir():
        raise InputError(f"`--source`: `{source}` is a folder", hint=f"--source hf:{source}")
    if not source.endswith(".py") or not Path(source).is_file():
        return source
    models = _models_in(_imported(Path(source)))
    if len(models) == 1:
        return f"{source}:{models[0]}"
    held = f"holds {listed(models)}" if models else "holds no `torch.nn.Module`, and no function `build`"
    hint = f"--source {source}:{models[-1]}" if models else f"in {source}: `def build(): return Net(…)`"
    raise InputError(f"`--source`: `{source}` {held}, allowed: one of them by its name", hint=hint)


def _models_in(module: ModuleType) -> list[str]:
    """Networks that are there already; else functions that are called as such are; else classes, those last that come
    last in the file."""
    from torch import nn

    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    there = [name for name, value in vars(module).items() if isinstance(value, nn.Module)]
    functions = [name for name in own if name in _USUAL and callable(own[name])]
    classes = [name for name, value in own.items() if isinstance(value, type) and issubclass(value, nn.Module)]
    return there or functions or classes


def _imported(file: Path) -> ModuleType:
    from archiver.sources import import_file
    from config.load import parse_spec
    from marina.starting.init_spec import ModelFacts, spec_text

    here = ModelFacts(f"./{file.name}:build", "tensor", inputs={"x": {"shape": [1], "dtype": "float32"}})
    try:
        spec = parse_spec(spec_text("mine", here, "x.json"), Path("spec.yaml"), files=False)
        return import_file(spec, file, "model.source")
    except SourceError as err:
        raise InputError(err.message.replace("spec.yaml: `model.source`", "`--source`"), hint=err.hint) from err
