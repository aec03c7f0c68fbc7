"""Finds the model that `--source` means: the only one in a Python file, or an error that says what to type."""

import re
from pathlib import Path
from shlex import quote
from types import ModuleType

from marina.config.errors import InputError, SourceError, listed, nearest
from marina.config.other_formats import other_format
from marina.config.remote import meant_hub_id, parse_remote, remote_form
from marina.config.sections import SAVED
from marina.config.torchvision_models import TORCHVISION_MODELS

_FACTORY_NAMES = ("build", "build_model", "create_model", "get_model", "make_model", "model")


def resolve_source(source: str) -> str:
    """The source; for a Python file without a name, with the name of its only model."""
    if parse_remote(source):
        return source
    if form := remote_form(source):
        raise InputError(f"`--source`: got `{source}`, allowed: `{form}`")
    if not source.removeprefix("hf:").partition(":")[0]:
        raise InputError(f"`--source`: got `{source}`, without a path", hint="--source ./model.py:Net")
    if wrong := other_format(source):
        raise InputError(f"`--source`: `{source}` {wrong[0]}", hint=wrong[1])
    if source.endswith(".safetensors"):
        text = f"`--source`: got `{source}`, but such a file goes with the code of its model"
        raise InputError(text, hint=f"--source ./model.py:Net --weights {quote(source)}")
    if Path(source).is_dir():
        raise InputError(f"`--source`: `{source}` is a folder", hint=f"--source {quote(f'hf:{source}')}")
    if not re.search(r"^(hf|torchvision):|\.py(:|$)|\.pt2$", source) and not source.lower().endswith(SAVED):
        close = None if "/" in source else nearest(source, TORCHVISION_MODELS)
        meant = f"torchvision:{close}" if close else meant_hub_id(source)
        if not close and meant:
            text = f"`--source`: got `{source}`; a model of Hugging Face's hub begins with `hf:`"
            raise InputError(text, hint=f"--source {meant}")
        allowed = (
            "`torchvision:NAME`, `./file.py:NAME`, `./program.pt2`, `./model.pt`, `hf:./folder` or `hf:OWNER/NAME`"
        )
        text = f"`--source`: got `{source}`, allowed: {allowed}"
        raise InputError(text, hint=f"--source {meant}" if meant else None)
    if not source.endswith(".py") or not Path(source).is_file():
        return source
    models = _models_in(_import_source(Path(source)))
    if len(models) == 1:
        return f"{source}:{models[0]}"
    if models:
        text = f"`--source`: `{source}` defines {listed(models)}: name one of them"
        raise InputError(text, hint=f"--source {quote(f'{source}:{models[-1]}')}")
    text = f"`--source`: `{source}` defines no `torch.nn.Module`, and no function such as `build`"
    raise InputError(text, hint=f"in {source}: `def build(): return Net(…)`")


def _models_in(module: ModuleType) -> list[str]:
    """The names of the networks in a module; if it has none, of functions that usually make one; if it has none of
    these either, of its network classes, in the order of the file."""
    from torch import nn

    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    networks = [name for name, value in vars(module).items() if isinstance(value, nn.Module)]
    functions = [name for name in own if name in _FACTORY_NAMES and callable(own[name])]
    classes = [name for name, value in own.items() if isinstance(value, type) and issubclass(value, nn.Module)]
    return networks or functions or classes


def _import_source(file: Path) -> ModuleType:
    from marina.archiver.user_code import import_file
    from marina.config.load import parse_spec
    from marina.starting.init_spec import ModelFacts, spec_text

    here = ModelFacts(f"./{file.name}:build", "tensor", inputs={"x": {"shape": [1], "dtype": "float32"}})
    try:
        spec = parse_spec(spec_text("mine", here, "x.json"), Path("spec.yaml"), files=False)
        return import_file(spec, file, "model.source")
    except SourceError as err:
        raise InputError(err.message.replace("spec.yaml: `model.source`", "`--source`"), hint=err.hint) from err
