"""`calibrate --tune`: searches for the best settings under the objective, without trying all; each is packaged and
served.

It starts from the spec's own settings and improves one at a time, the most important first, until nothing nearby is
better: workers and threads, which share the cores; then the batch size; then how long a batch waits to fill."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from marina.config.errors import MarinaError
from marina.config.load import parse_spec
from marina.config.measured import Objective, ServingSettings
from marina.config.progress import Progress
from marina.config.record import write_json, write_text
from marina.config.remote import parse_remote
from marina.config.sections import HANDLERS
from marina.config.spec import Spec
from marina.loadtest.calibrating.calibration import settings_of
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.trials import RateTrials, ServerEnded
from marina.loadtest.judging import objective_of
from marina.loadtest.measuring import figure
from marina.loadtest.running import Session, TargetOptions, open_session, serve_command

DELAYS_MS = (1, 2, 5, 10, 20)
# Wide enough to tell settings apart with a few runs each; afterwards the knee of the best is measured exactly.
_TOLERANCE = 0.08
# A smaller difference is noise: two searches for the same knee differ by as much.
_BETTER = 1.03
# The warm-up of a setting that has a rate to beat starts at this share of that rate.
_WARM_UP_SHARE = 0.3
# The exit code of a command that Ctrl-C stopped: a process in the background may not get SIGINT itself.
_INTERRUPTED = 130
# Fields that may hold a path.
_PATHS = {
    "model": ("source", "weights", "labels", "calibration", "handler", "files"),
    "load": ("sample", "samples", "replay"),
}

Measure = Callable[[ServingSettings, float], float | None]
"""Returns the rate that settings hold within the objective, requests/s; None if it is less than the given rate."""
Serve = Callable[[ServingSettings], AbstractContextManager[Session]]


@dataclass(frozen=True)
class SettingsSpace:
    """The settings that may be tried."""

    cores: int
    batches: Sequence[int]
    """The compiled batch sizes; a larger batch would be split."""
    delays_ms: Sequence[int]

    @property
    def splits(self) -> list[tuple[int, int]]:
        """All pairs of workers and threads that use every core exactly once."""
        return [(workers, self.cores // workers) for workers in range(1, self.cores + 1) if not self.cores % workers]

    @property
    def size(self) -> int:
        """The number of settings in the full grid."""
        return len(self.splits) * len(self.batches) * len(self.delays_ms)


@dataclass(frozen=True)
class TriedSettings:
    """Settings and the rate that they hold; None, and not measured any further, if they do not hold `to_beat`."""

    settings: ServingSettings
    rps: float | None
    to_beat: float = 0.0

    def __str__(self) -> str:
        none = f"less than {figure(self.to_beat)}" if self.to_beat else "no"
        return f"{self.settings}: {none if self.rps is None else figure(self.rps)} requests/s"


@dataclass(frozen=True)
class Tuning:
    """The best settings, and all that were tried, in order and starting with the spec's own."""

    best: TriedSettings
    tried: tuple[TriedSettings, ...]
    grid: int
    """How many settings there are to try."""

    @property
    def unchanged(self) -> bool:
        """Whether the spec's own settings are the best found."""
        return self.best == self.tried[0]

    def to_data(self) -> dict[str, Any]:
        """The content of `tune.json`."""
        tried = [each.settings.model_dump() | {"rps": each.rps, "to_beat": each.to_beat} for each in self.tried]
        best = {"best": self.best.settings.model_dump(), "rps": self.best.rps}
        return {"schema": "marina.tune/1", **best, "grid": self.grid, "tried": tried}

    def to_text(self, spec_file: Path) -> str:
        """The result as lines for the terminal."""
        lines = [*(f"  {each}" for each in self.tried), f"tried {len(self.tried)} of {self.grid} settings"]
        if self.best.rps is None:
            return "\n".join([*lines, "none of them meets the objective at any rate"])
        if self.unchanged:
            return "\n".join([*lines, "the spec's settings are the best found"])
        change = f"{figure(self.tried[0].rps or 0)} to {figure(self.best.rps)} requests/s"
        settings = ", ".join(f"{name}: {value}" for name, value in self.best.settings.model_dump().items())
        return "\n".join(
            [*lines, f"better settings: {change}", f"hint: set under `serving` in {spec_file}: {settings}"]
        )


def search_settings(measure: Measure, start: ServingSettings, space: SettingsSpace) -> Tuning:
    """Searches the space for the best settings, starting from `start`."""
    tried = {start: TriedSettings(start, measure(start, 0.0))}
    best, before = tried[start], None
    while best != before:
        before = best
        for move in _moves(space):
            for settings in move(best.settings):
                # Settings that did not hold an earlier rate do not hold a later one, which is higher.
                if settings not in tried:
                    to_beat = _BETTER * (best.rps or 0.0)
                    tried[settings] = TriedSettings(settings, measure(settings, to_beat), to_beat)
                if (tried[settings].rps or 0.0) <= _BETTER * (best.rps or 0.0):
                    break
                best = tried[settings]
    return Tuning(best, tuple(tried.values()), space.size)


def _moves(space: SettingsSpace) -> Iterator[Callable[[ServingSettings], list[ServingSettings]]]:
    """From settings to others: each split of the cores, then steps up and down, which end when one is no better."""
    for workers, threads in space.splits:
        yield partial(_split, workers, threads)
    for field, values in (("max_batch", space.batches), ("max_batch_delay_ms", space.delays_ms)):
        yield partial(_steps, field, sorted(values), 1)
        yield partial(_steps, field, sorted(values, reverse=True), -1)


def _split(workers: int, threads: int, settings: ServingSettings) -> list[ServingSettings]:
    return [settings.model_copy(update={"workers": workers, "threads": threads})]


def _steps(field: str, values: Sequence[int], sign: int, settings: ServingSettings) -> list[ServingSettings]:
    # A batch of one does not wait, so its delay has no effect.
    if field == "max_batch_delay_ms" and settings.max_batch == 1:
        return []
    further = [value for value in values if sign * (value - getattr(settings, field)) > 0]
    return [settings.model_copy(update={field: value}) for value in further]


def tune_settings(
    spec: Spec, options: CalibrateOptions, out: Path, *, serve: Serve | None = None, quiet: bool = False
) -> Tuning:
    """Finds the best settings, and writes `tune.json` into `out`."""
    objective = objective_of(spec)
    measure = _Measure(serve or _server(spec, options, objective, out, quiet), objective, options)
    tuning = search_settings(measure, settings_of(spec), settings_space(spec, objective))
    write_json(out / "tune.json", tuning.to_data())
    return tuning


def settings_space(spec: Spec, objective: Objective) -> SettingsSpace:
    """The settings that may be tried for a spec."""
    cores = spec.workers * spec.threads if spec.serving.device == "cuda" else max(1, int(spec.cores))
    # A batch that waits for more than half of the limit leaves too little time for the model.
    delays = [delay for delay in DELAYS_MS if delay <= objective.p99_ms / 2] or [1]
    return SettingsSpace(cores=cores, batches=spec.model.batch_sizes, delays_ms=delays)


class _Measure:
    """Measures settings: first only whether they beat the best so far; if they do, their knee."""

    def __init__(self, serve: Serve, objective: Objective, options: CalibrateOptions) -> None:
        self._serve = serve
        self._objective = objective
        self._options = options.model_copy(update={"tolerance": max(_TOLERANCE, options.tolerance)})

    def __call__(self, settings: ServingSettings, to_beat: float) -> float | None:
        with self._serve(settings) as session:
            trials = RateTrials(session, self._objective, self._options)
            try:
                if to_beat:
                    # It has just started, and must not lose to a server that is warm only for that reason.
                    trials.warm_up(_WARM_UP_SHARE * to_beat)
                    if not trials.holds(to_beat):
                        return None
                return trials.find(to_beat or self._options.first).rps
            except NeverHeld:
                return None
            except (ServerEnded, Untrusted) as err:
                # Settings that cannot be shown to be better do not count as better.
                if to_beat:
                    return None
                if isinstance(err, ServerEnded):
                    raise
                text = f"`{settings}` cannot be measured: {err}"
                raise MarinaError(text, hint="try again on a quieter machine") from err


def _server(spec: Spec, options: CalibrateOptions, objective: Objective, out: Path, quiet: bool) -> Serve:
    """Returns a function that packages and serves settings, each in its own folder."""

    def serve(settings: ServingSettings) -> AbstractContextManager[Session]:
        Progress(quiet=quiet).say(str(settings))
        tuned = tuned_spec(spec, settings, out / "tune" / "-".join(map(str, settings.model_dump().values())))
        folder = tuned.file.parent
        command = [sys.executable, "-m", "marina", "package", str(tuned.file), "--out", str(folder), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == _INTERRUPTED:
            raise KeyboardInterrupt
        if done.returncode:
            raise MarinaError(f"{tuned.file}: cannot be packaged: {done.stderr.strip()}")
        where = TargetOptions(out=folder / spec.name, command=serve_command(tuned.file, folder), as_pod=True)
        return open_session(tuned, where, objective, options, quiet=quiet)

    return serve


def tuned_spec(spec: Spec, settings: ServingSettings, folder: Path) -> Spec:
    """The spec with other settings, written to its own folder; its paths still lead to the same files."""
    data = spec.model_dump(mode="json", exclude_unset=True)
    data["serving"] = data.get("serving", {}) | settings.model_dump()
    for section, fields in _PATHS.items():
        given = data.get(section, {})
        given.update({field: _absolute(spec, field, given[field]) for field in fields if given.get(field)})
    file = folder / "spec.yaml"
    write_text(file, yaml.safe_dump(data, sort_keys=False))
    return parse_spec(file.read_text(encoding="utf-8"), file)


def _absolute(spec: Spec, field: str, value: Any) -> Any:
    """A field's value with absolute paths: `./model.py:build`, `hf:./model` and lists have some; `image`, `imagenet`
    and `torchvision:resnet18` have none, whatever lies beside the spec."""
    if isinstance(value, dict):
        return {_absolute(spec, field, name): weight for name, weight in value.items()}
    if isinstance(value, list):
        return [_absolute(spec, field, name) for name in value]
    words = {"handler": HANDLERS, "labels": ("imagenet",)}.get(field, ())
    no_file = field == "weights" and value != spec.model.weights_file
    if value in words or no_file or parse_remote(value) or (field == "source" and spec.model.from_torchvision):
        return value
    kind = "hf:" if field == "source" and spec.model.folder else ""
    return f"{kind}{spec.path(value.removeprefix(kind)).resolve()}"
