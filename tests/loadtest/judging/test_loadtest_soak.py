"""A soak names what grows in the server, but nothing that only fluctuates or settles."""

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loadtest_rig import SPEC
from queues import always, measured
from specs import DIGITS

import marina
from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.config.measured import Objective
from marina.config.pages import linear_axis
from marina.loadtest.judging import judge, judge_soak
from marina.loadtest.judging.soak import growth
from marina.loadtest.measuring import Measurement, Second, ServerReading, ServerReadings, ServerWatch, percent
from marina.loadtest.measuring.server_readings import parse_reading
from marina.loadtest.reporting.charts import growth_charts
from marina.loadtest.reporting.text import check_text, interval_note
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test
from marina.loadtest.scheduling import Schedule

OBJECTIVE = Objective(p99_ms=50, error_rate=0.1, throughput_rps=None)
BASE = 400e6
PAGE = """# HELP marina_resident_memory_bytes Resident memory beside the workers.
marina_worker_resident_memory_bytes{model="m",worker="9000"} 5e+08
marina_resident_memory_bytes{process="torchserve"} 3.5e+08
marina_open_files{process="torchserve"} 77
marina_worker_open_files{model="m",worker="9000"} 12
marina_worker_restarts_total{model="m",worker="9000"} 1
marina_queued{model="m"} 3
marina_start_duration_seconds{model="m"} 2.813
"""


def blocks(shape: Callable[[float], float], noise: float = 0.002, seed: int = 1) -> list[float]:
    """Twelve medians of a figure that is `shape` of the time from 0 to 1, with correlated noise."""
    dice, drift, values = random.Random(seed), 0.0, []
    for at in range(12):
        drift = 0.5 * drift + dice.gauss(0, noise * BASE)
        values.append(BASE * shape(at / 11) + drift)
    return values


@pytest.mark.parametrize(
    ("name", "shape", "status"),
    [
        ("a leak", lambda at: 1 + 0.1 * at, "FAIL"),
        ("a leak with a sawtooth", lambda at: 1 + 0.2 * at + 0.01 * (at * 7 % 1), "FAIL"),
        ("a leak that gets worse", lambda at: 1 + 0.1 * at * at, "FAIL"),
        ("nothing", lambda _: 1, "PASS"),
        ("a sawtooth", lambda at: 1 + 0.1 * (at * 4 % 1), "PASS"),
        ("a step", lambda at: 1.1 if at > 0.4 else 1, "PASS"),
        ("what was full early", lambda at: 1 + 0.2 * (1 - math.exp(-30 * at)), "PASS"),
        ("what fills ever more slowly", lambda at: 1 + 0.2 * (1 - math.exp(-2 * at)), "INVALID"),
        ("a leak of a little", lambda at: 1 + 0.01 * at, "PASS"),
        ("what falls", lambda at: 1 - 0.2 * at, "PASS"),
    ],
)
def test_only_what_grows_all_the_time_fails(name: str, shape: Callable[[float], float], status: str) -> None:
    assert [growth(blocks(shape, seed=seed), "memory") for seed in range(20)].count(status) >= 19, name  # type: ignore[arg-type]


def test_figures_that_do_not_grow_raise_few_alarms() -> None:
    alarms = [growth(blocks(lambda _: 1, noise=0.05, seed=seed), "memory") for seed in range(1000)]
    assert alarms.count("FAIL") + alarms.count("INVALID") <= 20


def soaked(memory: Callable[[float], float] = lambda _: BASE, **changes: Any) -> Measurement:
    """Ten minutes of a server with this memory at each second."""
    run = measured(always(0.001), Schedule(arrivals="poisson", rate=20, warmup_s=0, duration_s=600), 50, 1)
    readings = [
        ServerReading(at_s=at, memory={"worker 9000": memory(at), "torchserve": BASE}, files={"worker 9000": 12.0})
        for at in range(2, 600, 2)
    ]
    seconds = tuple(Second(due=20, response=run.slices[at].response) for at in range(600))
    return run.model_copy(update={"vitals": ServerReadings(readings=tuple(readings)), "seconds": seconds} | changes)


def judged(run: Measurement) -> tuple[str, list[str]]:
    verdict = judge_soak(judge(run, OBJECTIVE), run, warmup_s=0, java_heap_mb=512)
    return verdict.status, [f"{reason.id}: {reason.text}" for reason in verdict.every_reason()]


def test_a_step_is_not_growth_and_the_verdict_says_why() -> None:
    run = soaked(lambda at: BASE * (1 if at < 380 else 1.05))
    verdict = judge_soak(judge(run, OBJECTIVE), run, warmup_s=0)
    (memory,) = (check for check in verdict.checks if check.objective == "memory")
    assert check_text(memory) == f"memory {percent(memory.measured or 0)} > 2 %, but not steadily"
    assert (memory.status, interval_note(memory)) == ("PASS", "but not steadily")


def test_each_process_is_drawn_relative_to_the_start_of_the_judged_time() -> None:
    run = soaked(lambda at: BASE * (0.5 if at < 20 else 1 + max(0, at - 200) / 4000))
    memory, files = growth_charts(run, 0, linear_axis(0, 600))
    drawn = {line.name: line for line in memory.chart.lines}
    assert drawn.keys() == {"worker 9000", "torchserve"}
    assert memory.chart.limit == 102
    assert memory.chart.shaded == [(0, 200)]
    ends = [dict(drawn[name].points)[598] for name in ("worker 9000", "torchserve")]
    assert ends == pytest.approx([109.9, 100], abs=0.5)
    # Values from before the caches were full would squeeze the judged ones.
    assert dict(drawn["worker 9000"].points)[10] is None
    assert list(memory.legend) == ["torchserve", "worker", "102 %", "not judged"]
    assert [line.name for line in files.chart.lines] == ["worker 9000"]


def test_a_run_without_readings_has_no_growth_charts() -> None:
    assert growth_charts(soaked(vitals=None), 0, linear_axis(0, 600)) == []


def test_a_server_that_does_not_grow_passes() -> None:
    assert judged(soaked()) == ("PASS", [])


def test_the_process_that_grows_is_named() -> None:
    status, (reason,) = judged(soaked(lambda at: BASE + 1e6 * at / 5))
    assert status == "FAIL"
    assert reason == (
        "memory-grows: the memory of worker 9000 grew from 453 MB to 506 MB in 4.44 minutes and never fell back: "
        "it grows, or rises and falls in cycles longer than this soak"
    )


def test_what_was_as_high_before_may_fall_again() -> None:
    # It falls every 500 seconds: once, before the judged time begins.
    status, (reason,) = judged(soaked(lambda at: BASE + 2e5 * ((at + 330) % 500)))
    assert status == "INVALID"
    assert reason == (
        "settles: the memory of worker 9000 grew from 419 MB to 472 MB in 4.44 minutes, but it was as high before: "
        "a longer soak will show whether it stops"
    )


def test_buffers_that_fill_with_the_first_requests_are_not_a_leak_unless_they_grow_after_them() -> None:
    def little(at: float) -> float:
        return 48e6 + 3e6 * at / 600

    status, (reason,) = judged(soaked(little))
    assert status == "INVALID"
    assert reason == (
        "settles: the memory of worker 9000 grew from 49 MB to 51 MB in 4.44 minutes, as buffers do while they "
        "fill up during the first 100,000 requests: a longer soak will show whether it stops"
    )
    many = tuple(each.model_copy(update={"due": 600}) for each in soaked().seconds)
    status, (reason,) = judged(soaked(little, seconds=many))
    assert status == "FAIL"
    assert reason.startswith("memory-grows: the memory of worker 9000 grew from 49 MB to 51 MB")


def test_growth_by_no_more_than_allowed_passes() -> None:
    many = tuple(each.model_copy(update={"due": 600}) for each in soaked().seconds)
    by = [
        soaked(lambda at, share=share: BASE * (1 + share * at / 400) + 2e6 * math.sin(at / 13))
        for share in (0.02, 0.06)
    ]  # type: ignore[misc]
    assert [judged(run.model_copy(update={"seconds": many}))[0] for run in by] == ["PASS", "FAIL"]


def test_a_heap_that_fills_with_the_first_requests_is_a_leak_of_a_worker_but_not_of_java() -> None:
    def growing(name: str, due: int = 20) -> tuple[str, list[str]]:
        run = soaked()
        assert run.vitals is not None
        readings = tuple(
            each.model_copy(update={"memory": each.memory | {name: BASE + 1e6 * each.at_s / 5}})
            for each in run.vitals.readings
        )
        seconds = tuple(each.model_copy(update={"due": due}) for each in run.seconds)
        return judged(run.model_copy(update={"vitals": ServerReadings(readings=readings), "seconds": seconds}))

    status, (reason,) = growing("torchserve")
    assert status == "INVALID"
    assert reason.startswith("settles: the memory of torchserve grew from 453 MB to 506")
    assert "as a heap does while it fills up during the first 100,000 requests" in reason
    assert growing("torchserve", due=600)[0] == growing("worker 9000")[0] == "FAIL"


def test_files_that_are_never_closed_are_named() -> None:
    vitals = soaked().vitals or ServerReadings()
    readings = tuple(
        each.model_copy(update={"files": {"torchserve": 50 + each.at_s // 20}}) for each in vitals.readings
    )
    status, (reason,) = judged(soaked(vitals=ServerReadings(readings=readings)))
    assert (status, reason.partition(" in ")[0]) == (
        "FAIL",
        "files-grows: the open files of torchserve grew from 63 to 76",
    )


def test_answers_that_take_longer_and_longer_fail() -> None:
    slices = soaked().slices
    slower = []
    for at, piece in enumerate(slices):
        made = type(piece.response)((50,))
        made.add(5 + at / 100, piece.response.count)
        slower.append(Second(due=piece.due, response=made))
    status, reasons = judged(soaked(seconds=tuple(slower)))
    assert status == "FAIL"
    assert [reason.partition(":")[0] for reason in reasons] == ["drift-grows", "drift-grows"]


@pytest.mark.parametrize(
    ("vitals", "reason"),
    [
        (None, "server-unseen: the memory could not be read"),
        (ServerReadings(missed=300, why="http://x/metrics cannot be read"), "http://x/metrics cannot be read"),
        (
            ServerReadings(readings=tuple(ServerReading(at_s=at) for at in range(600))),
            "the server's metrics do not include it",
        ),
        (
            ServerReadings(readings=tuple(ServerReading(at_s=at, memory={"torchserve": BASE}) for at in range(9))),
            "too-few-readings: 0 readings of the server's metrics are too few",
        ),
    ],
)
def test_a_server_whose_metrics_were_not_read_is_not_judged(vitals: ServerReadings | None, reason: str) -> None:
    status, reasons = judged(soaked(vitals=vitals))
    assert status == "INVALID"
    assert reason in reasons[0]


def test_a_worker_that_was_restarted_fails() -> None:
    vitals = soaked().vitals or ServerReadings()
    readings = tuple(
        each.model_copy(update={"restarts": {"worker 9000": each.at_s // 400}}) for each in vitals.readings
    )
    assert judged(soaked(vitals=ServerReadings(readings=readings))) == (
        "FAIL",
        ["restarted: worker 9000 ended and was restarted"],
    )


@pytest.mark.parametrize(
    ("starts", "fails"),
    # One server; one that was started again, unread meanwhile; two behind one address.
    [([2.8] * 6, False), ([2.8, 2.8, None, 3.1, 3.1, 3.1], True), ([2.8, 3.1, 3.1, 2.8, 3.1, 2.8], False)],
)
def test_a_server_that_was_started_again_as_a_whole_fails(starts: list[float | None], fails: bool) -> None:
    readings = (soaked().vitals or ServerReadings()).readings
    changed = [
        each.model_copy(update={"start_s": starts[6 * place // len(readings)]}) for place, each in enumerate(readings)
    ]
    _, reasons = judged(soaked(vitals=ServerReadings(readings=tuple(changed))))
    assert reasons == ["restarted: the whole server ended and was restarted"] * fails


def test_the_page_is_read_as_the_supervisor_writes_it() -> None:
    assert parse_reading(PAGE, 3.0) == ServerReading(
        at_s=3.0,
        memory={"worker 9000": 5e8, "torchserve": 3.5e8},
        files={"torchserve": 77, "worker 9000": 12},
        restarts={"worker 9000": 1},
        start_s=2.813,
    )


@pytest.mark.slow
def test_failed_readings_are_counted() -> None:
    asked = iter([PAGE, 'marina_open_files{process="supervisor"} many\n', PAGE])

    def page() -> str:
        try:
            return next(asked)
        except StopIteration:
            missed.append(1)
            raise OSError("gone") from None

    missed: list[int] = []
    with ServerWatch(page, total_s=1) as watch:
        while not missed:
            time.sleep(0.05)
    assert (len(watch.vitals.readings), watch.vitals.missed, watch.vitals.why) == (2, 2, "gone")


@pytest.mark.parametrize("option", ["duration_s", "max_duration_s", "repeat"])
def test_options_that_contradict_a_soak_are_refused(option: str) -> None:
    options = RunOptions.model_validate({"soak_s": 100, option: 3})
    with pytest.raises(InputError, match=r"`--soak`: not together with `--.*`: it is a single run of a special kind"):
        options.schedule(parse_spec(SPEC, Path("spec.yaml"), files=False), OBJECTIVE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--soak", "2x"], "`--soak`: got `2x`, allowed: seconds, or a time such as "),
        (["--max-duration", "-1"], "`--max-duration`: got `-1`, allowed: more than 0"),
        (["--timeout", "1e300"], "`--timeout`: got `1e+300`, allowed: 2147483647 or less"),
        (["--rate", "1e-320"], "got 9.99989e-321 requests/s, allowed: 0.0001 or more"),
    ],
)
def test_an_option_that_cannot_be_read_is_named_as_it_is_typed(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["loadtest", str(DIGITS), *words]) == 2
    assert message in capsys.readouterr().err


def test_pods_in_a_cluster_cannot_be_soaked(tmp_path: Path) -> None:
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    where: Any = TargetOptions(out=tmp_path, remote=SimpleNamespace(pods=2))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="`--soak`: not together with `--in-cluster`: it reads the memory of one server"
    ):
        run_load_test(spec, RunOptions(rate=5, soak_s=75), where)
