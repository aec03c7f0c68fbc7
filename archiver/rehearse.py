"""Loads a staged package as a TorchServe worker would; the handler warms every batch size and answers the sample.

Runs as a script that can import only from the package and from what a pod has installed, so that a missing import fails
here and not in the pod."""

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module, metadata
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import ClassVar

# The file beside the package with the answer to the sample; its first line is the content type.
ANSWER = "answer"


def main() -> None:
    folder = Path(sys.argv[1])
    PodImportFinder.install()
    sys.path.insert(0, str(folder))
    # TorchServe's own context, so that the handler meets the interface that it will have in a worker.
    from ts.context import Context

    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    gpu = 0 if record["device"] == "cuda" else None
    context = Context(record["name"], str(folder), {}, max(record["batch_sizes"], default=1), gpu, "0.12.0")
    try:
        service = import_module("marina_entry").Service()
        service.initialize(context)
    except ModuleNotFoundError as err:
        if owner := PodImportFinder.hidden.get((err.name or "").partition(".")[0]):
            err.msg += f": {owner} is installed here, but a pod has only what a worker needs"
        raise
    if record["gives"]:
        answer = service.rehearse()
        (folder.parent / ANSWER).write_bytes(answer.content_type.encode() + b"\n" + answer.body)
    if record["cache"] and record["device"] == "cuda":
        save_compile_cache(folder / record["cache"])


class PodImportFinder(PathFinder):
    """Finds installed modules, but hides those that a pod does not have, so that importing them fails as it would
    there."""

    hidden: ClassVar[dict[str, str]] = {}
    """The hidden top-level modules, each with the distribution that installed it."""

    @classmethod
    def install(cls) -> None:
        """Replaces the finder that looks into site-packages."""
        installed = metadata.packages_distributions()
        # Marina itself is not hidden, but the one in the package comes first.
        ours = [_normal(name) for name in installed.get("marina", [])]
        in_pod = set(ours) | _with_dependencies(_pod_requirements(ours))
        cls.hidden = {module: names[0] for module, names in installed.items() if not set(map(_normal, names)) & in_pod}
        # Without the finders of editable installations: those of a pod are not editable.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, cls]

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for a hidden module, as for one that does not exist."""
        return None if fullname.partition(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


def _pod_requirements(ours: Sequence[str]) -> list[str]:
    """The requirements of a pod. In a clone they come from `pyproject.toml`, which may be newer than the installed
    metadata of `ours`, the distribution that Marina was installed as."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        return [f"{name}[serve]" for name in ours]
    data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return [*data["dependencies"], *data["optional-dependencies"]["serve"]]


def _with_dependencies(requirements: list[str]) -> set[str]:
    """The names of the required distributions and of all their dependencies."""
    names: set[str] = set()
    waiting = requirements
    while waiting:
        name, extras = _parsed(waiting.pop())
        key = f"{name}[{extras}]"
        if key in names:
            continue
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        names |= {name, key}
        for requirement in requires:
            extra = re.search(r"""extra == ["']([^"']+)""", requirement)
            if extra is None or extra[1] in extras.split(","):
                waiting.append(requirement)
    return names


def _parsed(requirement: str) -> tuple[str, str]:
    """A requirement's name and its extras."""
    match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
    assert match is not None, requirement
    return _normal(match[1]), (match[2] or "").replace(" ", "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def save_compile_cache(cache: Path) -> None:
    """Saves what torch has compiled so far, for a worker to start from. Only used on GPUs: on the CPU this does not
    contain frozen graphs, and the kernels, which take most of the time, stay in the folder anyway."""
    import torch

    from marina.handlers.program import ARTIFACTS

    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        (cache / ARTIFACTS).write_bytes(saved[0])


if __name__ == "__main__":
    main()
