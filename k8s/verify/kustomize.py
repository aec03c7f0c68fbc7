"""The kustomizations below a folder. `marina verify` reads the objects in the files as they are, and applies none."""

from collections.abc import Iterator
from contextlib import suppress
from os.path import exists, isfile, normpath
from pathlib import Path
from typing import Any

from marina.config.errors import listed
from marina.config.yaml_lines import read_documents

KUSTOMIZATIONS = {"Kustomization", "kustomization.yaml", "kustomization.yml"}
# Where a kustomization names objects; elsewhere it names patches, settings, and contents of ConfigMaps.
_WHOLE = ("bases", "components", "crds", "resources")
# Fields that change no object.
_HARMLESS = {"apiVersion", "kind", "metadata", "buildMetadata", "openapi", "sortOptions", *_WHOLE}
_SHOWN = 5


def kustomize_parts(folder: Path) -> set[str]:
    """The paths that kustomizations below a folder name for another purpose than as objects, such as patches."""
    parts: set[str] = set()
    for file, table in _kustomizations(folder):
        names = _texts([value for key, value in table.items() if key not in _WHOLE])
        # Contents of a ConfigMap may be named as `KEY=FILE`.
        parts.update(normpath(file.parent / name.rpartition("=")[2]) for name in names)
    return parts


def overlays_below(folder: Path) -> dict[str, frozenset[str]]:
    """The folders of kustomizations, each with the overlays that it is a part of: those that no other one names."""
    named: dict[str, set[str]] = {}
    for file, table in _kustomizations(folder):
        names = {normpath(file.parent / name) for key in _WHOLE for name in _texts(table.get(key))}
        named.setdefault(normpath(file.parent), set()).update(names)
    parts: dict[str, frozenset[str]] = dict.fromkeys(named, frozenset())
    for overlay in named.keys() - set().union(*named.values()):
        left = [overlay]
        while left:
            place = left.pop()
            if place in parts and overlay not in parts[place]:
                parts[place] |= {overlay}
                left += named[place]
    return parts


def adds_labels(folder: Path) -> bool:
    """Whether a kustomization below a folder adds labels, often also to selectors."""
    return any(not table.keys().isdisjoint(("commonLabels", "labels")) for _, table in _kustomizations(folder))


def describe_unapplied(folder: Path) -> str:
    """What kustomizations below a folder would change or add; empty if that is nothing."""
    described: list[str] = []
    for file, table in _kustomizations(folder):
        changing = sorted(table.keys() - _HARMLESS)
        named = [name for key in _WHOLE for name in _texts(table.get(key))]
        unread = [name for name in named if not _is_below(file.parent / name, folder)]
        texts = [listed(changing)] if changing else []
        texts += [f"not read: {listed(unread)}"] if unread else []
        described += [f"{file} ({'; '.join(texts)})"] if texts else []
    if not described:
        return ""
    more = f" and {len(described) - _SHOWN} more" if len(described) > _SHOWN else ""
    shown = ", ".join(described[:_SHOWN]) + more
    return (
        f"kustomizations are not applied, so a cluster gets other objects than these: {shown}; check what `kubectl "
        "kustomize` prints of the folder of each"
    )


def _is_below(path: Path, folder: Path) -> bool:
    return exists(path) and Path(normpath(path)).is_relative_to(normpath(folder))


def _kustomizations(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted(folder.rglob("*")):
        if file.name in KUSTOMIZATIONS and isfile(file):
            with suppress(OSError, UnicodeDecodeError):
                for settings, _lines, _problems in read_documents(file.read_text(encoding="utf-8-sig"), str(file)):
                    yield file, settings if isinstance(settings, dict) else {}


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)
