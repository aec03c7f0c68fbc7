"""A rising rate shows between which rates the objective broke, and so whether it held at the promised rate."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from loadtest_rig import SPEC, behave, running_server, write_package
from queues import QUEUES, Queue, always, measured, true_knee

from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.loadtest.judging import Objective, judge_ramp, ramp_result, ramp_text
from marina.loadtest.measuring import Histogram, Measurement
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test, verdict_text
from marina.loadtest.scheduling import Ramp, Schedule

OBJECTIVE = Objective(p99_ms=60, error_rate=0.001, throughput_rps=None)


def spec_in(folder: Path, text: str = SPEC) -> object:
    return parse_spec(text, folder / "spec.yaml", files=False)


def rising(begin: float, end: float, **options: object) -> Schedule:
    chosen = RunOptions(ramp=(begin, end), **options)  # type: ignore[arg-type]
    return chosen.schedule(spec_in(Path()), OBJECTIVE)  # type: ignore[arg-type]


def test_the_rate_of_a_ramp_rises_evenly() -> None:
    schedule = rising(10, 90, warmup_s=4, duration_s=200)
    times = list(schedule.times())
    assert sum(time < 4 for time in times) == 40
    counts = [sum(4 + 50 * part <= time < 54 + 50 * part for time in times) for part in range(4)]
    # 1,000, 2,000, 3,000 and 4,000 if arrivals were not random.
    assert counts == pytest.approx([1000, 2000, 3000, 4000], rel=0.1)
    even = list(rising(10, 90, warmup_s=0, duration_s=200, arrivals="constant").times())
    gaps = [after - before for before, after in itertools.pairwise(even)]
    assert gaps == sorted(gaps, reverse=True)
    assert sorted(time for part in range(3) for time in schedule.times(part, 3)) == times


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES, ids=[queue.name for queue in QUEUES])
def test_it_breaks_around_the_true_knee(queue: object) -> None:
    knee = true_knee(queue, 60, requests=200_000)  # type: ignore[arg-type]
    for seed in range(4):
        schedule = rising(0.2 * knee, 1.6 * knee, seed=seed)
        climb = ramp_result(measured(queue, schedule, 60, seed), schedule.ramp or Ramp(begin=1, end=2), OBJECTIVE)  # type: ignore[arg-type]
        assert climb.broke_rps is not None
        low, high = climb.broke_rps
        assert low <= knee <= high <= 1.45 * knee
        assert climb.about_rps == pytest.approx(knee, rel=0.25)
        assert not climb.recovered


@pytest.fixture(scope="module")
def climbing() -> tuple[Measurement, Ramp]:
    """A server that answers at most 100/s gets 20/s to 120/s; it answers 63/s within 60 ms."""
    schedule = rising(20, 120)
    assert schedule.ramp
    return measured(always(0.010), schedule, 60, 1), schedule.ramp


@pytest.mark.parametrize(
    ("promised", "status", "reasons"),
    [(30, "PASS", []), (62, "INVALID", ["undecided"]), (110, "FAIL", ["broke"]), (None, "FAIL", ["broke"])],
)
def test_the_promised_rate_decides(
    climbing: tuple[Measurement, Ramp], promised: float | None, status: str, reasons: list[str]
) -> None:
    objective = OBJECTIVE.model_copy(update={"throughput_rps": promised})
    verdict = judge_ramp(climbing[0], ramp_result(*climbing, objective), objective)
    assert (verdict.status, [reason.id for reason in verdict.every_reason()]) == (status, reasons)


@pytest.mark.slow
def test_a_ramp_that_ends_too_early_or_has_too_few_requests_says_nothing() -> None:
    objective = OBJECTIVE.model_copy(update={"throughput_rps": 150})
    for schedule, reason in (
        (rising(10, 50), "rate-below-objective"),
        (rising(10, 200, duration_s=20), "too-few-samples"),
    ):
        assert schedule.ramp
        run = measured(always(0.001), schedule, 60, 1)
        verdict = judge_ramp(run, ramp_result(run, schedule.ramp, objective), objective)
        assert (verdict.status, [each.id for each in verdict.every_reason()]) == ("INVALID", [reason])


def test_a_ramp_with_too_few_requests_counts_them_all_and_names_no_rate() -> None:
    schedule = rising(10, 50, duration_s=20)
    assert schedule.ramp
    run = measured(always(0.001), schedule, 60, 1)
    (check,) = judge_ramp(run, ramp_result(run, schedule.ramp, OBJECTIVE), OBJECTIVE).checks
    assert [reason.text for reason in check.reasons] == ["600 requests are too few for a ramp, needed: 4,000"]
    assert check.measured is None


def test_a_ramp_without_a_good_answer_fails_however_short_it_is() -> None:
    schedule = rising(10, 50, duration_s=20)
    assert schedule.ramp
    refused = measured(always(0.001), schedule, 60, 1).model_copy(
        update={"response": Histogram((60,)), "errors": {"http 429": 600}}
    )
    verdict = judge_ramp(refused, ramp_result(refused, schedule.ramp, OBJECTIVE), OBJECTIVE)
    text = "none of 600 requests got a good answer: http 429"
    assert (verdict.status, [reason.text for reason in verdict.every_reason()]) == ("FAIL", [text])


@pytest.mark.slow
@pytest.mark.parametrize("promised", [None, 50])
def test_an_objective_that_held_up_to_the_end_of_a_ramp_passes(promised: float | None) -> None:
    objective = OBJECTIVE.model_copy(update={"throughput_rps": promised})
    schedule = rising(10, 50)
    assert schedule.ramp
    run = measured(always(0.001), schedule, 60, 1)
    assert judge_ramp(run, ramp_result(run, schedule.ramp, objective), objective).status == "PASS"


@pytest.mark.slow
def test_many_rates_judged_at_once_break_or_hold_no_objective_by_chance() -> None:
    verdicts = set()
    for share in (0.009, 0.012):
        slow = Queue(
            "steady", 1000, lambda times, dice, share=share: np.where(dice.random(len(times)) < share, 0.2, 0.01)
        )
        for seed in range(20):
            schedule = rising(20, 120, seed=seed)
            assert schedule.ramp
            run = measured(slow, schedule, 60, seed)
            verdicts.add((share, judge_ramp(run, ramp_result(run, schedule.ramp, OBJECTIVE), OBJECTIVE).status))
    assert not verdicts & {(0.009, "FAIL"), (0.012, "PASS")}


def test_a_failure_only_at_a_low_rate_is_not_blamed_on_the_rate_alone(climbing: tuple[Measurement, Ramp]) -> None:
    run, ramp = climbing
    slow = Histogram((60,))
    slow.add(500, 30)
    slices = tuple(
        piece.model_copy(update={"response": slow, "due": 30} if 100 <= at < 200 else {"response": FAST, "due": 30})
        for at, piece in enumerate(run.slices)
    )
    climb = ramp_result(run.model_copy(update={"slices": slices}), ramp, OBJECTIVE)
    assert climb.recovered
    assert "held again at a higher rate" in ramp_text(climb, OBJECTIVE)


FAST = Histogram((60,))
FAST.add(5, 30)


def test_refused_requests_break_it_as_well(climbing: tuple[Measurement, Ramp]) -> None:
    run, ramp = climbing
    slices = tuple(
        piece.model_copy(
            update={"response": Histogram((60,)) if at > 500 else FAST, "failed": 30 * (at > 500), "due": 30}
        )
        for at, piece in enumerate(run.slices)
    )
    climb = ramp_result(run.model_copy(update={"slices": slices}), ramp, OBJECTIVE)
    assert climb.about_rps == pytest.approx(70, rel=0.02)
    assert ": errors 9" in ramp_text(climb, OBJECTIVE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(ramp=(20, 10)), "`--ramp`: got `20:10`, allowed: a rate that rises"),
        (RunOptions(ramp=(1, 10), rate=5), "not together with `--rate`"),
        (RunOptions(ramp=(1, 10), replay=Path("x.csv")), "not together with `--replay`"),
        (RunOptions(ramp=(1, 10), repeat=2), "not together with `--repeat`"),
    ],
)
def test_options_that_contradict_a_ramp_are_refused(options: RunOptions, message: str) -> None:
    with pytest.raises(InputError) as raised:
        options.schedule(spec_in(Path()), OBJECTIVE)  # type: ignore[arg-type]
    assert message in raised.value.message


@pytest.mark.slow
def test_a_ramp_that_ends_below_the_promised_rate_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace("p99_ms: 2000", "p99_ms: 2000, throughput_rps: 30")
    write_package(tmp_path / "build")
    with running_server(tmp_path / "server") as url:
        where = TargetOptions(out=tmp_path / "build", url=url)
        run_load_test(spec_in(tmp_path, text), RunOptions(ramp=(10, 20), duration_s=1, warmup_s=0), where)  # type: ignore[arg-type]
    note = "note: 20 requests/s are less than `slo.throughput_rps`, 30: no such ramp can PASS\n"
    assert note in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_server_breaks_where_its_capacity_ends(tmp_path: Path) -> None:
    text = SPEC.replace("p99_ms: 2000", "p99_ms: 250")
    write_package(tmp_path / "build")
    with running_server(tmp_path / "server") as url:
        behave(url, capacity=300)
        options = RunOptions(ramp=(150, 600), duration_s=20, warmup_s=1, processes=2)
        outcome = run_load_test(
            spec_in(tmp_path, text), options, TargetOptions(out=tmp_path / "build", url=url), quiet=True
        )  # type: ignore[arg-type]
    assert outcome.ramp is not None
    assert outcome.verdict.status != "PASS"
    assert outcome.ramp.broke_rps is not None
    assert outcome.ramp.broke_rps[0] < 300 < outcome.ramp.broke_rps[1]
    assert "ramp: the objective broke at about" in verdict_text(outcome)
    page = (tmp_path / "build/verdict.html").read_text()
    assert "Latency by rate" in page
    assert "150 to 600 requests/s" in page
