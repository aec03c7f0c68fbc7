"""Which files of a folder a model is loaded from."""

import re
from collections.abc import Iterable

# Raised whenever other files are wanted: what was cached by the rules before is then fetched again, as far as it lacks.
RULES = 1
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
# What a model is loaded from besides its weights; in a folder below, only what `sentence-transformers` writes.
_SETTINGS = re.compile(r"[^/]+\.(json|jinja|txt|model|tiktoken)|\d+_\w+/(config\.json|model\.safetensors)")
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


def wanted_files(names: Iterable[str]) -> list[str]:
    """The settings and the weights, but no second copy of these in the form of another library, or as a pickle beside
    `.safetensors`."""
    names = sorted(names)
    at_root = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    weights = [name for name in at_root if _WEIGHTS.fullmatch(name)] or at_root
    weights = weights or [name for name in names if _PICKLED.fullmatch(name)]
    settings = [name for name in names if _SETTINGS.fullmatch(name)]
    unused = ".bin.index.json" if any(name.endswith(".safetensors") for name in weights) else ".safetensors.index.json"
    return [*(name for name in settings if not name.endswith(unused)), *weights]
