"""The newest verdict is compared with a stored one if only the package changed; otherwise each difference is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from loadtest_rig import MACHINE, SPEC, write_package
from queues import Queue, always, measured

import marina
from marina.loadtest.judging.cost import Costs
from marina.loadtest.judging.record import LoadedServer, LoadRecord, LoadTestOutcome, RampResult, run_record
from marina.loadtest.judging.slo import judge
from marina.loadtest.judging.verdict import Objective
from marina.loadtest.measuring import Machine
from marina.loadtest.scheduling import Schedule


def verdict(queue: Queue, package: str, seed: int, machine: Machine = MACHINE, **load: Any) -> LoadTestOutcome:
    objective = Objective(p99_ms=2000, error_rate=0.01, throughput_rps=None)
    schedule = Schedule(arrivals="poisson", rate=80, warmup_s=2, duration_s=60)
    run = measured(queue, schedule, objective.p99_ms, seed)
    fields: dict[str, Any] = {
        "arrivals": "poisson", "rate": 80, "warmup_s": 2, "duration_s": 60, "repeat": 1, "processes": 1, "seed": 0,
        "timeout_s": 10, "sample_bytes": 300, "sample_content_type": "image/png",
    }  # fmt: skip
    judged = judge(run, objective)
    return LoadTestOutcome(
        verdict=judged,
        objective=objective,
        tested=LoadedServer(
            name="digits",
            version="1.0",
            spec="spec.yaml",
            url="http://x:8080",
            started=True,
            package=package,
            served=package,
            cold_start_s=4.2,
        ),
        load=LoadRecord(**(fields | load)),
        machine=machine,
        at="2026-01-02T03:04:05Z",
        runs=(run_record(run, judged),),
    )


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The exit code and the output of `marina compare --baseline`."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    sha256 = write_package(tmp_path / "build/digits")

    def compare(old: LoadTestOutcome, new_queue: Queue, package: str | None = None, **changes: Any) -> tuple[int, str]:
        (tmp_path / "kept.json").write_text(json.dumps(old.to_data()))
        newest = verdict(new_queue, package or sha256, seed=2).model_copy(update=changes)
        (tmp_path / "build/digits/verdict.json").write_text(json.dumps(newest.to_data()))
        out = ["--out", str(tmp_path / "build"), "--baseline", str(tmp_path / "kept.json")]
        code = marina.main(["compare", str(tmp_path / "spec.yaml"), *out])
        output = capsys.readouterr()
        return code, output.out + output.err

    return compare


@pytest.mark.parametrize(
    ("service_s", "code", "text"),
    [(0.005, 0, "compare: PASS new / old: p50 1 ("), (0.0051, 0, "PASS"), (0.009, 1, "p50-worse: p50 is")],
)
def test_a_package_is_compared_with_a_stored_verdict(compared: Any, service_s: float, code: int, text: str) -> None:
    exit_code, output = compared(verdict(always(0.005), "ab" * 32, seed=1), always(service_s))
    assert exit_code == code
    assert text in output
    assert "cpu" not in output


def test_each_difference_is_named_and_nothing_is_compared(compared: Any) -> None:
    machine = MACHINE.model_copy(update={"cores": 4, "memory_bytes": 2**33})
    load = {"rate": 70, "processes": 2, "samples_sha256": "12" * 32}
    code, output = compared(verdict(always(0.005), "ab" * 32, 1, machine, **load), always(0.005))
    assert code == 3
    assert "compare: INVALID nothing was compared\n" in output
    named = [line.strip() for line in output.splitlines() if "not-alike" in line]
    assert named == [
        "not-alike: `machine.cores` was 4 and is 2",
        "not-alike: `load.rate` was 70.0 and is 80.0",
        "not-alike: `load.processes` was 2 and is 1",
        f"not-alike: `load.samples_sha256` was {'12' * 32} and is None",
    ]


def test_a_rising_rate_is_not_compared_with_its_mean(compared: Any) -> None:
    ramp = RampResult(begin_rps=20, end_rps=140, held_rps=20, broke_rps=None, about_rps=None, recovered=False, steps=())
    rising = verdict(always(0.005), "ab" * 32, seed=1).model_copy(update={"ramp": ramp})
    code, output = compared(rising, always(0.005))
    assert code == 3
    assert "not-alike: `ramp.begin_rps` was 20.0 and is None" in output


def test_a_package_that_is_no_worse_fails_if_it_is_over_its_budget(compared: Any) -> None:
    costs = Costs(currency="USD", pod_hour=3.6, target_rps=None, seen_rps=80, at_target=None, at_seen=0.125, budget=0.1)
    code, output = compared(verdict(always(0.005), "ab" * 32, seed=1), always(0.005), costs=costs)
    assert code == 1
    assert "over-budget: 10,000 requests cost 0.125 USD at 80 requests/s per pod, allowed: 0.1" in output


def test_a_verdict_on_another_package_than_the_local_one_is_refused(compared: Any) -> None:
    code, output = compared(verdict(always(0.005), "ab" * 32, seed=1), always(0.005), package="cd" * 32)
    assert code == 2
    assert "verdict.json: it is about package cdcdcdcdcdcd, but the spec's package is" in output


def test_a_file_that_is_not_a_verdict_is_refused(
    compared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(verdict(always(0.005), "ab" * 32, seed=1), always(0.005))
    (tmp_path / "kept.json").write_text("{}")
    arguments = ["compare", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--baseline"]
    assert marina.main([*arguments, str(tmp_path / "kept.json")]) == 2
    assert marina.main([*arguments, str(tmp_path / "kept.json"), "--against", "old.mar"]) == 2
    capsys.readouterr()
    assert marina.main([*arguments, str(tmp_path / "kept.json"), "--rate", "50"]) == 2
    assert capsys.readouterr().err == "error: `--rate`: not with `--baseline`, which sends nothing\n"
