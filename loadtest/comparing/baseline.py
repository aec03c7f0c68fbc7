"""Compares two stored verdicts of the same load on the same machine; if they are not alike, it lists the differences.

Both had the same arrivals, so each twelfth of a run can be compared with the same twelfth of the other, as a round."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marina.config.errors import InputError
from marina.config.spec import Spec
from marina.loadtest.comparing.compare import judge_costs_and_write, regression_of
from marina.loadtest.comparing.comparison import Comparison, ComparisonLoad, Round, Side, Turn
from marina.loadtest.comparing.judgement import judge_rounds
from marina.loadtest.comparing.rounds import first_side
from marina.loadtest.comparing.sides import read_outcome
from marina.loadtest.judging import LoadTestOutcome, Reason, RunRecord
from marina.loadtest.measuring import merge_slices
from marina.loadtest.running import TargetOptions, find_package

# Enough parts to show how they vary, and each long enough to have a p99.
_PARTS_PER_RUN = 12
# The fields of a machine that must be equal; its memory may differ by what the kernel keeps for itself.
_SAME_MACHINE = {"processor", "cores", "cpu_limit", "memory_limit_bytes", "isa", "system", "python"}


def compare_with_baseline(spec: Spec, baseline: Path, where: TargetOptions) -> Comparison:
    """Compares the newest verdict of the spec's package with a stored one, and writes the same files as `compare`."""
    old, new = read_outcome(baseline, "--baseline"), _newest(spec, where)
    differing = list(_differences(old, new))
    rounds = [] if differing else list(_rounds(old, new))
    load = new.load.model_dump(include=set(ComparisonLoad.model_fields))
    judged = judge_rounds(rounds, new.objective, regression_of(spec))
    result = Comparison(
        status="INVALID" if differing else judged.status,
        reasons=tuple(differing) or judged.reasons,
        figures=() if differing else judged.figures,
        regression=regression_of(spec),
        objective=new.objective,
        old=Side(**old.tested.model_dump(include=set(Side.model_fields))),
        new=Side(**new.tested.model_dump(include=set(Side.model_fields))),
        answers=None,
        load=ComparisonLoad(**load, turn_s=new.load.duration_s / _PARTS_PER_RUN),
        machine=new.machine,
        at=new.at,
        rounds=tuple(rounds),
        costs=new.costs,
    )
    return judge_costs_and_write(result, where.out)


def _newest(spec: Spec, where: TargetOptions) -> LoadTestOutcome:
    file = where.out / "verdict.json"
    again = f"marina loadtest {spec.file}"
    if not file.is_file():
        raise InputError(f"{file}: there is no verdict of `{spec.name}` to compare with the baseline", hint=again)
    outcome, package = read_outcome(file, "--baseline"), find_package(where)
    if package is not None and outcome.tested.package != package.sha256:
        tested = (outcome.tested.package or "unknown")[:12]
        raise InputError(
            f"{file}: it is about package {tested}, but the spec's package is {package.sha256[:12]}", hint=again
        )
    return outcome


def _differences(old: LoadTestOutcome, new: LoadTestOutcome) -> Iterator[Reason]:
    """One reason for each thing that must be the same and is not."""
    after = _conditions(new)
    for name, value in _conditions(old).items():
        if value != after[name]:
            yield Reason(id="not-alike", text=f"`{name}` was {value} and is {after[name]}")


def _conditions(outcome: LoadTestOutcome) -> dict[str, Any]:
    parts = {
        "machine": outcome.machine.model_dump(include=_SAME_MACHINE),
        "load": outcome.load.model_dump(),
        "ramp": {name: getattr(outcome.ramp, name, None) for name in ("begin_rps", "end_rps")},
        "objective": outcome.objective.model_dump(),
        "tested": {"started": outcome.tested.started},
    }
    return {f"{part}.{name}": value for part, fields in parts.items() for name, value in fields.items()}


def _rounds(old: LoadTestOutcome, new: LoadTestOutcome) -> Iterator[Round]:
    """A round for each part of each run that both verdicts have."""
    number = 0
    for before, after in zip(old.runs, new.runs, strict=False):
        measured = before.measurement, after.measurement
        if measured[0].asked_s != measured[1].asked_s or not all(run.slices for run in measured):
            return
        left_out = (*before.verdict.reasons, *after.verdict.reasons)
        for turns in zip(_parts_of_run(before), _parts_of_run(after), strict=True):
            yield Round(first=first_side(number), old=turns[0], new=turns[1], left_out=left_out)
            number += 1


def _parts_of_run(run: RunRecord) -> Iterator[Turn]:
    slices = run.measurement.slices
    for at in range(_PARTS_PER_RUN):
        whole = merge_slices(slices[len(slices) * at // _PARTS_PER_RUN : len(slices) * (at + 1) // _PARTS_PER_RUN])
        yield Turn(
            asked_s=run.measurement.asked_s / _PARTS_PER_RUN,
            planned=whole.due,
            sent=whole.due,
            answered=whole.due - whole.failed,
            in_time=whole.in_time,
            failed=whole.failed,
            cpu_s=None,
            response=whole.response,
        )
