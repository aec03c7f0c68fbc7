from typing import Any

import pytest

from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.config.measured import Objective, VerdictStatus
from marina.loadtest.judging.slo import client_timeout_s, judge, objective_of, samples_needed
from marina.loadtest.measuring import (
    GeneratorHealth,
    Histogram,
    Measurement,
    PackageIdentity,
    Slice,
    merge_measurements,
)
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest
from marina.loadtest.sending.recorder import Recorder

OBJECTIVE = Objective(p99_ms=105, error_rate=0.001, throughput_rps=100)


REQUEST = LoadRequest(url="http://x/predictions/m", body=b"YQ==", content_type="text/plain")


def histogram(*values: float, limit: float = 105) -> Histogram:
    made = Histogram((limit,))
    for value in values:
        made.add(value)
    return made


def measured(*values: float, limit: float = 105, errors: dict[str, int] | None = None, **changes: Any) -> Measurement:
    """A healthy run of 100 requests/s for as long as the values last, changed where a test says so."""
    failed = sum((errors or {}).values())
    count = len(values) + failed
    ended = [*values, *[10_000.0] * (errors or {}).get("timeout", 0)]
    fields: dict[str, Any] = {
        "rate": 100,
        "asked_s": count / 100 or 10,
        "ran_s": count / 100 or 10,
        "planned": count,
        "sent": count,
        "dropped": 0,
        "warmup": 0,
        "in_time": len(values),
        "errors": errors or {},
        "response": histogram(*ended, limit=limit),
        "service": histogram(*ended, limit=limit),
        "lag": histogram(*[0.1] * count),
        "loop_lag": histogram(*[0.1] * 100),
        "seconds": (),
        "generators": ((GeneratorHealth(cpu=0.2, loop_lag_ms=1),) * 10,),
        "identity": PackageIdentity(wanted="aa", found="aa"),
    }
    return Measurement(**(fields | changes))


def ids(measurement: Measurement, objective: Objective = OBJECTIVE) -> tuple[VerdictStatus, list[str]]:
    verdict = judge(measurement, objective)
    return verdict.status, [reason.id for reason in verdict.every_reason()]


def text(measurement: Measurement, objective: Objective = OBJECTIVE) -> str:
    return "; ".join(reason.text for reason in judge(measurement, objective).every_reason())


@pytest.mark.parametrize(("limit", "status"), [(104, "FAIL"), (105, "PASS"), (104.9, "PASS")])
def test_a_thousand_times_104_9_ms_fails_104_and_passes_105(limit: float, status: VerdictStatus) -> None:
    objective = OBJECTIVE.model_copy(update={"p99_ms": limit})
    assert judge(measured(*[104.9] * 1000, limit=limit), objective).status == status


def test_p99_over_the_limit_says_both_numbers() -> None:
    objective = OBJECTIVE.model_copy(update={"p99_ms": 104})
    assert text(measured(*[104.9] * 1000, limit=104), objective) == "p99 104.9 ms > 104 ms"


@pytest.mark.parametrize(("slow", "status"), [(10, "PASS"), (11, "FAIL")])
def test_ten_slow_answers_in_a_thousand_are_allowed_and_eleven_are_not(slow: int, status: VerdictStatus) -> None:
    assert ids(measured(*[20.0] * (1000 - slow), *[300.0] * slow))[0] == status


NOTHING: dict[str, Any] = {"lag": Histogram(), "loop_lag": Histogram(), "generators": ()}
LENIENT = OBJECTIVE.model_copy(update={"error_rate": 0.05})
FASTER, ANY = (OBJECTIVE.model_copy(update={"throughput_rps": rate}) for rate in (150, None))
VERDICTS: dict[str, tuple[Measurement, Objective, VerdictStatus, list[str], str]] = {
    "a healthy run": (measured(*[20.0] * 1000), OBJECTIVE, "PASS", [], ""),
    "no samples": (
        measured(**NOTHING), OBJECTIVE, "INVALID", ["no-samples"], "no request was sent in the measured window",
    ),
    "warm-up only": (
        measured(**NOTHING, warmup=1200), OBJECTIVE, "INVALID", ["warm-up-only"],
        "all 1,200 requests belonged to the warm-up, so nothing was measured",
    ),
    "requests that were sent and lost": (
        measured(**NOTHING, sent=90), OBJECTIVE, "INVALID", ["requests-lost"], "90 of 90 requests were sent,",
    ),
    "such requests after a warm-up": (
        measured(**NOTHING, sent=90, warmup=1200), OBJECTIVE, "INVALID", ["requests-lost"], "",
    ),
    "too few samples": (
        measured(*[20.0] * 999), OBJECTIVE, "INVALID", ["too-few-samples"],
        "999 answers are too few for a p99, which needs 1,000",
    ),
    "errors only": (
        measured(errors={"http 500": 1200}), OBJECTIVE, "FAIL", ["errors-only", "errors-over", "throughput-not-held"],
        "none of 1,200 requests got a good answer",
    ),
    "a few errors only": (
        measured(errors={"refused": 50}), OBJECTIVE, "FAIL", ["errors-only", "errors-over", "throughput-not-held"], "",
    ),
    "errors on the limit": (measured(*[20.0] * 1998, errors={"http 500": 2}), OBJECTIVE, "PASS", [], ""),
    "errors over the limit": (
        measured(*[20.0] * 1997, errors={"http 500": 3}), OBJECTIVE, "FAIL", ["errors-over"], "",
    ),
    "a full queue": (
        measured(*[20.0] * 1500, errors={"shed": 499, "timeout": 1}), OBJECTIVE, "FAIL",
        ["errors-over", "shed", "throughput-not-held"],
        "errors 25 % > 0.1 %: 499 shed, 1 timeout of 2,000 requests; 499 requests were shed",
    ),
    "a rate limit refused half, and the others hold the objective": (
        measured(*[20.0] * 2000, limited=2000, sent=4000, planned=4000), OBJECTIVE, "PASS", [], "",
    ),
    "a rate limit that admits less than the objective": (
        measured(*[20.0] * 1500, limited=500, sent=2000, planned=2000, asked_s=20, ran_s=20), OBJECTIVE, "FAIL",
        ["throughput-not-held"], "75 requests/s were answered well and in time < 100: a rate limit refused 500",
    ),
    "a rate limit refused everything": (
        measured(**NOTHING, sent=90, limited=90), OBJECTIVE, "INVALID", ["no-samples"],
        "all 90 requests were refused with 429, so nothing was measured",
    ),
    "errors of those that a rate limit admitted": (
        measured(*[20.0] * 1997, errors={"http 500": 3}, limited=2000, sent=4000, planned=4000), OBJECTIVE, "FAIL",
        ["errors-over"], "3 http 500 of 2,000 requests",
    ),
    "too little throughput": (
        measured(*[20.0] * 2000, in_time=1900), OBJECTIVE, "FAIL", ["throughput-not-held"],
        "95 requests/s were answered well and in time < 100",
    ),
    "allowed errors do not miss the throughput": (
        measured(*[20.0] * 1920, errors={"http 500": 80}, in_time=1920), LENIENT, "PASS", [], "",
    ),
    "others do": (
        measured(*[20.0] * 1920, errors={"http 500": 80}, in_time=1920), OBJECTIVE, "FAIL",
        ["errors-over", "throughput-not-held"], "",
    ),
    "so do more than are allowed": (
        measured(*[20.0] * 2000, in_time=1880), LENIENT, "FAIL", ["throughput-not-held"], "",
    ),
    "a rate below the objective": (
        measured(*[20.0] * 2000), FASTER, "INVALID", ["rate-below-objective"],
        "the run offered 100 requests/s, the objective is 150",
    ),
    "without an objective, the offered rate": (
        measured(*[20.0] * 2000, in_time=1900), ANY, "FAIL", ["throughput-not-held"], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "objective", "status", "reasons", "said"), VERDICTS.values(), ids=VERDICTS.keys())
def test_a_run_has_this_verdict_and_these_reasons(
    run: Measurement, objective: Objective, status: VerdictStatus, reasons: list[str], said: str
) -> None:
    assert ids(run, objective) == (status, reasons)
    assert said in text(run, objective)


def test_a_percentile_needs_ten_samples_above_it() -> None:
    assert (samples_needed(0.5), samples_needed(0.99), samples_needed(0.999)) == (20, 1000, 10_000)


def test_an_undecided_throughput_names_the_limit_that_its_interval_was_compared_with() -> None:
    whole = histogram(*[20.0] * 20)
    slices = tuple(Slice(due=20, in_time=20 - (number % 5 == 0), response=whole) for number in range(100))
    run = measured(*[20.0] * 2000, in_time=1980, slices=slices)
    assert "the limit of 99 requests/s lies inside the interval of throughput" in text(run)


def test_a_run_too_short_for_another_request_is_judged_by_what_it_offered() -> None:
    short = measured(20.0, rate=0.2, asked_s=6, ran_s=6)
    objective = OBJECTIVE.model_copy(update={"throughput_rps": None})
    assert ids(short, objective) == ("INVALID", ["too-few-samples"])
    objective = OBJECTIVE.model_copy(update={"throughput_rps": 0.2})
    assert text(short, objective).endswith("the run offered 0.1667 requests/s, the objective is 0.2")


SLOW = [300.0] * 1000
HELD_BACK: list[Any] = [
    pytest.param(
        {"generators": ((GeneratorHealth(cpu=0.97, loop_lag_ms=1),) * 10,)}, "generator-saturated", id="its own work"
    ),
    pytest.param({"loop_lag": histogram(*[60.0] * 100)}, "generator-stalled", id="loop late"),
    pytest.param({"lag": histogram(*[60.0] * 1000)}, "arrivals-late", id="arrivals late"),
    pytest.param({"dropped": 3}, "arrivals-dropped", id="arrivals not sent"),
    pytest.param({"sent": 1003, "errors": {"unsent": 3}}, "arrivals-dropped", id="no port left"),
    pytest.param({"ran_s": 5.0}, "cut-short", id="interrupted"),
    pytest.param({"sent": 1211, "interrupted": True}, "cut-short", id="interrupted before the last answers"),
    pytest.param({"sent": 1211}, "requests-lost", id="requests in no count"),
    pytest.param({"lost_processes": ("2 on host",)}, "process-lost", id="a generator that died"),
    pytest.param({"starts_ms": (0.0, 15.0), "clocks_ms": 7.0}, "processes-apart", id="generators not in step"),
    pytest.param({"identity": PackageIdentity(wanted="aa", found="bb")}, "package-differs", id="another package"),
    pytest.param({"identity": PackageIdentity(wanted="aa", found=None)}, "package-unknown", id="no package named"),
]


@pytest.mark.parametrize("values", [[20.0] * 1000, SLOW], ids=["would pass", "would fail"])
@pytest.mark.parametrize(("changes", "reason"), HELD_BACK)
def test_a_run_that_cannot_be_trusted_is_invalid_whatever_it_measured(
    values: list[float], changes: dict[str, Any], reason: str
) -> None:
    status, reasons = ids(measured(*values, **changes))
    assert status == "INVALID"
    assert reasons[0] == reason


def test_the_rate_of_a_run_that_was_cut_short_is_that_of_the_time_it_ran() -> None:
    run = measured(*[20.0] * 500, planned=2000, asked_s=20.0, interrupted=True)
    assert judge(run, OBJECTIVE).checks[2].measured == 100


def test_a_server_that_dies_during_the_run_fails_whatever_else_is_wrong() -> None:
    run = measured(*[20.0] * 500, errors={"refused": 500}, server_end="its process ended with code 137")
    assert ids(run)[0] == "FAIL"
    assert ids(run)[1][0] == "server-died"
    assert "the server died during the run: its process ended with code 137" in text(run)
    assert ids(run.model_copy(update={"ran_s": 1.0}))[0] == "FAIL"


def test_the_death_of_a_server_with_another_package_says_nothing() -> None:
    run = measured(*[20.0] * 1000, server_end="gone", identity=PackageIdentity(wanted="aa", found="bb"))
    assert ids(run) == ("INVALID", ["package-differs"])


def test_a_client_waits_longer_than_the_latency_limit() -> None:
    slow = OBJECTIVE.model_copy(update={"p99_ms": 30_000})
    assert (client_timeout_s(OBJECTIVE), client_timeout_s(slow)) == (10, 60)
    assert client_timeout_s(OBJECTIVE, 0.5) == 0.5


def test_a_timeout_within_the_latency_limit_is_refused() -> None:
    slow = OBJECTIVE.model_copy(update={"p99_ms": 30_000})
    with pytest.raises(InputError) as raised:
        client_timeout_s(slow, 10)
    assert raised.value.message == (
        "`--timeout`: got 10, allowed: more than the 30 s of `slo.p99_ms`, "
        "or a client would give up on answers that are still in time"
    )
    assert raised.value.hint == "--timeout 60"


def test_one_busy_second_in_a_hundred_is_allowed() -> None:
    calm, busy = GeneratorHealth(cpu=0.2, loop_lag_ms=1), GeneratorHealth(cpu=1.0, loop_lag_ms=1)
    assert ids(measured(*[20.0] * 1000, generators=((busy, *[calm] * 99),)))[0] == "PASS"
    assert ids(measured(*[20.0] * 1000, generators=((busy, *[calm] * 98),)))[0] == "INVALID"


def test_lateness_is_judged_against_the_objective() -> None:
    run = {"lag": histogram(*[10.0] * 1000)}
    strict = OBJECTIVE.model_copy(update={"p99_ms": 25})
    assert ids(measured(*[20.0] * 1000, **run))[0] == "PASS"
    assert ids(measured(*[20.0] * 1000, limit=25, **run), strict) == ("INVALID", ["arrivals-late"])


def test_a_limit_missed_only_through_late_arrivals_is_not_the_servers_fault() -> None:
    run = measured(*[110.0] * 1000, service=histogram(*[100.0] * 1000))
    assert ids(run) == ("INVALID", ["lag-decides"])


LATE = histogram(*[0.1] * 1990, *[90.0] * 10)


@pytest.mark.parametrize(("slow", "status"), [(40, "INVALID"), (41, "FAIL")])
def test_a_few_late_arrivals_excuse_as_many_slow_answers_behind_them(slow: int, status: VerdictStatus) -> None:
    run = measured(*[20.0] * (2000 - slow), *[150.0] * slow, lag=LATE)
    assert ids(run) == (status, ["lag-decides" if status == "INVALID" else "p99-over"])


@pytest.mark.parametrize(("shed", "status"), [(22, "INVALID"), (23, "FAIL")])
def test_a_queue_that_only_late_arrivals_filled_is_not_the_servers_fault(shed: int, status: VerdictStatus) -> None:
    run = measured(*[20.0] * (2000 - shed), errors={"shed": shed}, lag=LATE)
    assert judge(run, OBJECTIVE).checks[1].status == status


def test_late_arrivals_do_not_excuse_other_errors() -> None:
    run = measured(*[20.0] * 1980, errors={"http 500": 20}, lag=LATE)
    assert judge(run, OBJECTIVE).checks[1].status == "FAIL"


def test_repeats_are_judged_as_one_run() -> None:
    good, slow = measured(*[20.0] * 1000), measured(*[20.0] * 985, *[300.0] * 15)
    assert judge(slow, OBJECTIVE).status == "FAIL"
    assert judge([good, slow], OBJECTIVE).status == "PASS"
    assert judge([good, slow], OBJECTIVE).checks[1].measured == 0


def test_repeats_that_cannot_be_trusted_are_left_out_and_named() -> None:
    good, bad, short = measured(*[20.0] * 1000), measured(*SLOW), measured(*[20.0] * 1000, ran_s=1.0)
    assert judge([good, short], OBJECTIVE).status == "INVALID"
    verdict = judge([good, short, bad], OBJECTIVE)
    assert (verdict.status, verdict.checks[0].status) == ("FAIL", "FAIL")
    assert verdict.reasons[0].text == "run 2: the run ended after 1.0 s of 10 s"


def test_processes_merge_into_the_run_they_made_together() -> None:
    parts = [measured(*[20.0] * 600, warmup=5), measured(*[90.0] * 400, errors={"timeout": 1}, warmup=6)]
    run = merge_measurements(parts)
    assert (run.response.count, run.warmup, run.errors, len(run.generators)) == (1001, 11, {"timeout": 1}, 2)


@pytest.mark.parametrize(("status", "code"), [("PASS", 0), ("FAIL", 1), ("INVALID", 3)])
def test_exit_codes(status: VerdictStatus, code: int) -> None:
    verdict = judge(measured(*[20.0] * 1000), OBJECTIVE).model_copy(update={"status": status})
    assert verdict.exit_code == code


def test_a_spec_without_objective_says_what_to_type(tmp_path: Any) -> None:
    spec = parse_spec(
        "name: digits\nmodel: {source: torchvision:resnet18, weights: random}\n", tmp_path / "spec.yaml", files=False
    )
    with pytest.raises(InputError) as raised:
        objective_of(spec)
    assert raised.value.message == f"{tmp_path}/spec.yaml: `slo`: missing, a verdict needs an objective"
    assert raised.value.hint == "add to the spec: slo: {p99_ms: 100, error_rate: 0.001, throughput_rps: 50}"


def test_a_run_too_short_for_a_single_reading_is_not_called_busy() -> None:
    assert ids(measured(*[20.0] * 1000, generators=((),)))[0] == "PASS"


def test_slices_hold_what_the_whole_run_holds_and_merge() -> None:
    schedule = Schedule(arrivals="poisson", rate=100, warmup_s=1, duration_s=4)
    parts = []
    for part in range(2):
        plan = LoadPlan(request=REQUEST, schedule=schedule, part=part, parts=2, timeout_s=2, limit_ms=105)
        recorder = Recorder(plan)
        for number, due in enumerate(schedule.times(part, 2)):
            recorder.count_due(due, dropped=False)
            recorder.count_ended(due, due, due + 0.1 + number / 1e4, "http 500" if number % 10 == 9 else None)
        parts.append(recorder.measurement(4))
    run = merge_measurements(parts)
    assert len(run.slices) == 120
    assert sum(piece.due for piece in run.slices) == run.planned == 400
    assert sum(piece.failed for piece in run.slices) == run.failed == 40
    assert sum(piece.in_time for piece in run.slices) == run.in_time
    assert sum(piece.response.within(105) for piece in run.slices) == run.response.within(105)
