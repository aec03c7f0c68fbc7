"""Loads a staged package as a TorchServe worker would; the handler warms every batch size and answers the sample.

Run as a script, with nothing but the package and what a pod has to import from: what a file in the package needs and
does not bring is found here, not in the pod.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import ClassVar

# Beside the package: what the sample was answered, its content type in the first line.
ANSWER = "answer"


def main() -> None:
    folder = Path(sys.argv[1])
    OnlyWhatPodsHave.install()
    sys.path.insert(0, str(folder))
    # TorchServe's own context, so that this is the interface the handler will meet.
    from ts.context import Context

    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    gpu = 0 if record["device"] == "cuda" else None
    context = Context(record["name"], str(folder), {}, max(record["batch_sizes"], default=1), gpu, "0.12.0")
    try:
        service = import_module("marina_entry").Service()
        service.initialize(context)
    except ModuleNotFoundError as err:
        if owner := OnlyWhatPodsHave.hidden.get((err.name or "").partition(".")[0]):
            err.msg += f": {owner} is installed here, but a pod has only what a worker needs"
        raise
    if record["gives"]:
        answer = service.rehearse()
        (folder.parent / ANSWER).write_bytes(answer.content_type.encode() + b"\n" + answer.body)
    if record["cache"] and record["device"] == "cuda":
        keep_artifacts(folder / record["cache"])


class OnlyWhatPodsHave(PathFinder):
    """Finds what is installed on this machine, except for what is not in a pod: as there, an import of that fails."""

    hidden: ClassVar[dict[str, str]] = {}
    """Its modules, and what they were installed with."""

    @classmethod
    def install(cls) -> None:
        """Takes the place of the finder that looks into site-packages."""
        pods = {"marina"} | _with_what_they_need(_of_a_pod())
        installed = metadata.packages_distributions()
        cls.hidden = {module: names[0] for module, names in installed.items() if not set(map(_normal, names)) & pods}
        sys.meta_path[:] = [cls if finder is PathFinder else finder for finder in sys.meta_path]

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, as for a module that is nowhere."""
        return None if fullname.partition(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


def _of_a_pod() -> list[str]:
    """What a pod has, and what that needs. In a clone its own file says so, which is newer than what was installed."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    if not project.is_file():
        return ["marina[serve]"]
    data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return [*data["dependencies"], *data["optional-dependencies"]["serve"]]


def _with_what_they_need(requirements: list[str]) -> set[str]:
    """The distributions of requirements, and all that those draw in."""
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
            asked = re.search(r"""extra == ["']([^"']+)""", requirement)
            if asked is None or asked[1] in extras.split(","):
                waiting.append(requirement)
    return names


def _parsed(requirement: str) -> tuple[str, str]:
    """A requirement's name and its extras."""
    match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
    assert match is not None, requirement
    return _normal(match[1]), (match[2] or "").replace(" ", "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def keep_artifacts(cache: Path) -> None:
    """What torch has compiled so far, for a worker to start from. On the CPU frozen graphs are in no such cache, and
    the kernels that stay in the folder are what took the time."""
    import torch

    from handlers.program import ARTIFACTS

    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        (cache / ARTIFACTS).write_bytes(saved[0])


if __name__ == "__main__":
    main()
