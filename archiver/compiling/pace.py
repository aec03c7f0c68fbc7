"""How long compiling takes on this machine: guessed at first, and learnt from every time that it was done."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch.export import ExportedProgram

from archiver.compiling.cache import cache_folder, moved_into

_FILE = "pace.json"
# Seconds a node where nothing is known yet, and what loading and linking count for, in nodes.
_GUESS_S, _ANYWAY = 0.15, 30


def size_of(program: ExportedProgram) -> int:
    """What the time for a program is in proportion to."""
    return len(program.graph_module.graph.nodes) + _ANYWAY


def estimate(sizes: Sequence[int], at_once: int) -> str:
    """How long so many programs will take, in words."""
    seconds = _learnt().get(str(at_once), _GUESS_S) * max(sum(sizes) / at_once, max(sizes))
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def note(sizes: Sequence[int], at_once: int, took_s: float) -> None:
    """Remembers what it took: half of what is known is from the last time."""
    folder = cache_folder()
    if folder is None:
        return
    learnt, now = _learnt(), took_s / max(sum(sizes) / at_once, max(sizes))
    learnt[str(at_once)] = (learnt.get(str(at_once), now) + now) / 2
    try:
        moved_into(folder / _FILE, json.dumps(learnt).encode())
    except OSError:
        return  # as with the cache: no reason to end a package that is fine


def _learnt() -> dict[str, float]:
    """Seconds a node by how many programs were compiled at once."""
    folder = cache_folder()
    try:
        data = json.loads((folder / _FILE).read_text(encoding="utf-8")) if folder else {}
        return {str(at_once): float(seconds) for at_once, seconds in data.items() if 0 < float(seconds) < 60}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
