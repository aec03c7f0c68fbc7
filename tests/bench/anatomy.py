"""Where the time of an answer goes: what the workers' own metrics say of their stages, and /proc of the rest."""

import re
import urllib.request
from urllib.parse import urlsplit

import process_tree
from closed_loop import ClosedLoop
from contestants import Started
from rounds import Course

from marina.config.render import Ports

_STAGE = re.compile(r'^inference_stage_duration_seconds_sum\{.*stage="(\w+)"\} (\S+)$', re.MULTILINE)


def anatomy(started: Started, course: Course) -> dict[str, float]:
    """CPU milliseconds of one answer of a saturated server by where they went. A worker's stages are wall time, which
    is its CPU time as long as it has a core to itself."""
    with ClosedLoop(started.request, course.clients) as loop:
        loop.window(started.pid, course.warmup_s, 1, cores=course.cores)
        stages, kinds = _stages(started), process_tree.cpu_of_kinds_s(started.pid)
        window = loop.window(started.pid, 0, 2 * course.seconds, cores=course.cores)
        stages_after, kinds_after = _stages(started), process_tree.cpu_of_kinds_s(started.pid)
    answered = window.rps * 2 * course.seconds
    spent = {name: 1e3 * (stages_after[name] - stages[name]) / answered for name in stages}
    whole = {name: 1e3 * (kinds_after[name] - kinds[name]) / answered for name in kinds}
    rest = whole.pop("workers")
    return {**{f"worker: {name}": value for name, value in spent.items()}, "workers, all": rest, **whole}


def _stages(started: Started) -> dict[str, float]:
    port = Ports(urlsplit(started.request.url).port or 0).supervisor
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return {name: float(value) for name, value in _STAGE.findall(answer.read().decode())}
