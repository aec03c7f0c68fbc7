"""`calibrate --tune`: packages and serves each setting that the search asks for, and writes the best one as a patch."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from marina.config.errors import MarinaError
from marina.config.load import parse_spec
from marina.config.progress import Progress
from marina.config.record import write_json, write_text
from marina.config.spec import Spec
from marina.loadtest.calibrating.calibration import settings_of
from marina.loadtest.calibrating.evidence import ServingSettings
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.patch import settings_patch, with_settings
from marina.loadtest.calibrating.settings_search import SettingsSpace, Tuning, search_settings
from marina.loadtest.calibrating.trials import RateTrials, ServerEnded
from marina.loadtest.judging import Objective, objective_of
from marina.loadtest.measuring import figure
from marina.loadtest.running import Session, TargetOptions, open_session, serve_command

DELAYS_MS = (1, 2, 5, 10, 20)
# Wide enough to tell settings apart with a few runs each; afterwards the knee of the best is measured exactly.
_TOLERANCE = 0.08
# The warm-up of a setting that has a rate to beat starts at this share of that rate.
_WARM_UP_SHARE = 0.3
# The exit code of a command that Ctrl-C stopped: a process in the background may not get SIGINT itself.
_INTERRUPTED = 130
# Fields that may hold a path.
_PATHS = {
    "model": ("source", "weights", "labels", "calibration", "handler", "files"),
    "load": ("sample", "samples", "replay"),
}

Serve = Callable[[ServingSettings], AbstractContextManager[Session]]


def tune_settings(
    spec: Spec, options: CalibrateOptions, out: Path, *, serve: Serve | None = None, quiet: bool = False
) -> Tuning:
    """Finds the best settings, and writes `tune.json` and `tune.patch` into `out`."""
    objective = objective_of(spec)
    measure = _Measure(serve or _server(spec, options, objective, out, quiet), objective, options)
    tuning = search_settings(measure, settings_of(spec), settings_space(spec, objective))
    before = spec.file.read_text(encoding="utf-8")
    write_text(out / "tune.patch", settings_patch(before, with_settings(before, tuning.best.settings), str(spec.file)))
    write_json(out / "tune.json", tuning_record(tuning, settings_space(spec, objective)))
    return tuning


def settings_space(spec: Spec, objective: Objective) -> SettingsSpace:
    """The settings that may be tried for a spec."""
    cores = spec.workers * spec.threads if spec.serving.device == "cuda" else max(1, int(spec.cores))
    # A batch that waits for more than half of the limit leaves too little time for the model.
    delays = [delay for delay in DELAYS_MS if delay <= objective.p99_ms / 2] or [1]
    return SettingsSpace(cores=cores, batches=spec.model.batch_sizes, delays_ms=delays)


def tuning_record(tuning: Tuning, space: SettingsSpace) -> dict[str, Any]:
    """The content of `tune.json`."""
    return {
        "schema": "marina.tune/1",
        "best": tuning.best.settings.model_dump(),
        "rps": tuning.best.rps,
        "why": list(tuning.why),
        "grid": space.size,
        "tried": [tried.settings.model_dump() | {"rps": tried.rps, "to_beat": tried.to_beat} for tried in tuning.tried],
    }


def tuning_text(tuning: Tuning, space: SettingsSpace, spec_file: Path, out: Path) -> str:
    """The result of the search as a few lines for the terminal."""
    start = tuning.tried[0]
    lines = [*(f"  {reason}" for reason in tuning.why), f"tried {len(tuning.tried)} of {space.size} settings"]
    if tuning.best.rps is None:
        return "\n".join([*lines, "none of them meets the objective at any rate"])
    if tuning.best == start:
        return "\n".join([*lines, "the spec's settings are the best found"])
    change = f"{figure(start.rps or 0)} to {figure(tuning.best.rps)} requests/s"
    # Without its name, `patch` finds no file with a space, `..` or a leading `/` in its path.
    apply = f"hint: patch {quote(str(spec_file))} {quote(str(out / 'tune.patch'))}"
    return "\n".join([*lines, f"better settings: {change}", apply])


class _Measure:
    """Measures settings: first only whether they beat the best so far; if they do, their knee."""

    def __init__(self, serve: Serve, objective: Objective, options: CalibrateOptions) -> None:
        self._serve = serve
        self._objective = objective
        self._options = options.model_copy(update={"repeat": 1, "tolerance": max(_TOLERANCE, options.tolerance)})

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
        _package(tuned.file, folder)
        where = TargetOptions(out=folder / spec.name, command=serve_command(tuned.file, folder), as_pod=True)
        return open_session(tuned, where, objective, options, quiet=quiet)

    return serve


def tuned_spec(spec: Spec, settings: ServingSettings, folder: Path) -> Spec:
    """The spec with other settings, written to its own folder; its paths still lead to the same files."""
    data = spec.model_dump(mode="json", exclude_unset=True)
    data["serving"] = data.get("serving", {}) | settings.model_dump()
    for section, fields in _PATHS.items():
        given = data.get(section, {})
        given.update({field: _absolute(spec, given[field]) for field in fields if given.get(field)})
    file = folder / "spec.yaml"
    write_text(file, yaml.safe_dump(data, sort_keys=False))
    return parse_spec(file.read_text(encoding="utf-8"), file)


def _absolute(spec: Spec, value: Any) -> Any:
    """A field's value with absolute paths: `./model.py:build`, `hf:./model` and lists have some, `image` is none."""
    if isinstance(value, dict):
        return {_absolute(spec, name): weight for name, weight in value.items()}
    if isinstance(value, list):
        return [_absolute(spec, name) for name in value]
    path = value.removeprefix("hf:")
    if path == value and not spec.path(value.partition(":")[0]).exists():
        return value
    return f"{value.removesuffix(path)}{spec.path(path).resolve()}"


def _package(file: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "marina", "package", str(file), "--out", str(folder), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode:
        raise MarinaError(f"{file}: cannot be packaged: {done.stderr.strip()}")
