"""Estimates how long compiling takes on this machine: from a constant at first, then from the times measured before."""

import json
from collections.abc import Sequence

from torch.export import ExportedProgram

from marina.archiver.compiling.cache import cache_folder
from marina.config.record import write_text

_FILE = "pace.json"
# Before the first measurement, a graph node is assumed to take this long.
_DEFAULT_S_PER_NODE = 0.15
# Loading and linking a program take about as long as this many nodes.
_OVERHEAD_NODES = 30


def program_size(program: ExportedProgram) -> int:
    """A program's size in nodes; its compile time is proportional to this."""
    return len(program.graph_module.graph.nodes) + _OVERHEAD_NODES


def describe_estimate(sizes: Sequence[int], at_once: int) -> str:
    """The expected time for programs of these sizes, `at_once` in parallel, such as `15 s` or `3 min`."""
    seconds = _measured_rates().get(str(at_once), _DEFAULT_S_PER_NODE) * max(sum(sizes) / at_once, max(sizes))
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def record_time(sizes: Sequence[int], at_once: int, took_s: float) -> None:
    """Updates the stored rate: the average of the rate so far and of this compilation."""
    folder = cache_folder()
    if folder is None:
        return
    rates, latest = _measured_rates(), took_s / max(sum(sizes) / at_once, max(sizes))
    rates[str(at_once)] = (rates.get(str(at_once), latest) + latest) / 2
    try:
        write_text(folder / _FILE, json.dumps(rates))
    except OSError:
        return  # as with the cache: this must not fail a package that is fine


def _measured_rates() -> dict[str, float]:
    """Seconds per node, by the number of programs that were compiled at once."""
    folder = cache_folder()
    try:
        data = json.loads((folder / _FILE).read_text(encoding="utf-8")) if folder else {}
        return {str(at_once): float(seconds) for at_once, seconds in data.items() if 0 < float(seconds) < 60}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
