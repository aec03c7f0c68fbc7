import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, GPU, planned
from specs import DIGITS

import marina
from marina.config.errors import InputError
from marina.k8s.simulating import Simulation, SimulationOptions, TrafficTrace, read_traffic, simulate, simulation_html
from marina.k8s.simulating.simulation import AutoscalerResult

ONE = {"scaling.min_replicas": 1}
POD = SimulationOptions(knee_rps=100, cold_start_s=30)


def simulated(supposed: SimulationOptions, changes: dict[str, Any] | None = None, **records: Any) -> Simulation:
    return simulate(planned(ONE | (changes or {}), evidence=EVIDENCE, **records), supposed)


def at(simulation: Simulation, number: int = 0) -> AutoscalerResult:
    return simulation.results[number]


def test_after_a_step_to_2_2_times_the_target_pods_come_at_once_but_five_minutes_late_with_a_window() -> None:
    outcome = simulated(SimulationOptions(2.2, knee_rps=100, cold_start_s=30, up_window_s=300))
    now, before = at(outcome), at(outcome, 1)
    assert (now.hpa.up.window_s, before.hpa.up.window_s) == (0, 300)
    assert now.asked_s in (15, 30)
    assert now.enough_s is not None
    assert now.enough_s <= 30 + 30 + 15
    assert before.asked_s == 300
    assert before.missed_share > 4 * now.missed_share
    # The rate covers 20 s, and the first decision comes when nearly all of it is new: no pod at a time.
    assert now.replay.decisions[0][1:] == (1, 3)


def test_the_price_of_10_000_requests_includes_the_idle_time_of_pods() -> None:
    steady = SimulationOptions(TrafficTrace("steady", [35.0] * 3600), knee_rps=100, cold_start_s=5)
    assert "10,000 requests cost" not in simulated(steady).to_text()
    priced = simulated(steady, {"cost": {"pod_hour": 1.26, "currency": "EUR"}})
    # One pod for an hour, asked 126,000 times: ten cents for 10,000.
    assert priced.rows()[-1] == ["10,000 requests cost", "0.1 EUR"]
    assert priced.to_data()["outcomes"][0]["cost_per_10k"] == pytest.approx(0.1)
    # Shed requests do not make the answered ones cheaper than a pod at its knee answers them.
    flood = SimulationOptions(TrafficTrace("flood", [1000.0] * 3600), knee_rps=100, cold_start_s=5)
    priced = simulated(flood, {"cost": {"pod_hour": 3.6}, "scaling.max_replicas": 1})
    assert priced.rows()[-1] == ["10,000 requests cost", "0.1 USD"]


def test_without_requests_there_is_no_price_of_them() -> None:
    idle = SimulationOptions(TrafficTrace("idle", [0.0] * 600), knee_rps=100, cold_start_s=5)
    outcome = simulated(idle, {"cost": {"pod_hour": 1.26}})
    assert "10,000 requests cost" not in outcome.to_text()
    assert "cost_per_10k" not in outcome.to_data()["outcomes"][0]


def test_a_longer_cold_start_overloads_pods_for_longer() -> None:
    quick, slow = (at(simulated(SimulationOptions(3, knee_rps=100, cold_start_s=cold))) for cold in (5, 120))
    assert 2 * quick.replay.overloaded_s < slow.replay.overloaded_s


def test_the_capacity_of_a_pod_is_the_measured_one() -> None:
    outcome = simulated(SimulationOptions(2))
    assert (outcome.pod.knee_rps, outcome.pod.target_rps, outcome.pod.cold_start_s) == (1234.5, 864, 2.99)
    assert outcome.assumed == []


def test_values_that_were_never_measured_are_required_or_named_as_assumed() -> None:
    with pytest.raises(InputError, match="nothing was measured, so it is unknown how many requests/s a pod can serve"):
        simulate(planned(), SimulationOptions(2))
    outcome = simulate(planned({"scaling.target": 70}), SimulationOptions(2))
    assert outcome.pod.knee_rps == pytest.approx(100)
    assert [text.partition(":")[0] for text in outcome.assumed] == ["the knee", "the cold start"]


def test_without_an_autoscaler_or_a_rate_there_is_nothing_to_simulate() -> None:
    for field, value, more in (("autoscaler", "none", {}), ("metric", "queue_time", {}), ("metric", "gpu", GPU)):
        with pytest.raises(InputError, match=f"scaling.{field}`: got `{value}`"):
            simulated(POD, more | {f"scaling.{field}": value})


def test_an_autoscaler_of_keda_follows_a_step() -> None:
    outcome = at(simulated(SimulationOptions(5, knee_rps=100, cold_start_s=30), {"scaling.autoscaler": "keda"}))
    assert outcome.most_pods >= 5
    assert outcome.replay.decisions[-1][2] < outcome.most_pods


def metric_patch(kind: str, field: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"kubernetes.patches": [{"kind": kind, "merge": {"spec": {field: [value]}}}]}


MEMORY = {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 80}}
QUEUE = {"metric": {"name": "sqs"}, "target": {"type": "AverageValue", "averageValue": "5"}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            metric_patch("HorizontalPodAutoscaler", "metrics", {"type": "Resource", "resource": MEMORY}),
            "HorizontalPodAutoscaler digits: nothing tells how `memory` would change",
        ),
        (
            metric_patch("HorizontalPodAutoscaler", "metrics", {"type": "External", "external": QUEUE}),
            "HorizontalPodAutoscaler digits: nothing tells how `sqs` would change",
        ),
        (
            metric_patch("HorizontalPodAutoscaler", "metrics", {"type": "Object", "object": {}}),
            "HorizontalPodAutoscaler digits: cannot be replayed, allowed: a `behavior`, pod metrics, ",
        ),
        (
            {"scaling.autoscaler": "keda"} | metric_patch("ScaledObject", "triggers", {"type": "cron"}),
            "ScaledObject digits: cannot be replayed, allowed: a `behavior`, pod metrics, ",
        ),
    ],
)  # fmt: skip
def test_a_metric_that_a_patch_added_cannot_be_simulated(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        simulated(POD, changes)


@pytest.mark.slow
def test_a_day_is_followed_and_costs_fewer_pods_than_its_peak_would() -> None:
    outcome = at(simulated(POD, {"scaling.max_replicas": 10}))
    assert outcome.missed_share < 0.001
    assert outcome.most_pods == 8
    assert outcome.pod_hours < 0.7 * 24 * outcome.most_pods


def test_traffic_beyond_the_most_pods_is_shed_and_counted() -> None:
    flood = TrafficTrace("flood", [2000.0] * 600)
    outcome = at(simulated(SimulationOptions(flood, knee_rps=100, cold_start_s=30), {"scaling.max_replicas": 3}))
    assert outcome.most_pods == 3
    assert outcome.missed == pytest.approx(outcome.replay.requests)
    # Three pods answer 300 of 2,000 requests a second, late; what may wait is soon full.
    assert outcome.replay.shed / outcome.replay.requests == pytest.approx(0.85, abs=0.01)


def test_traffic_has_seconds_or_times_and_each_rate_lasts_until_the_next_row(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time,rate\n2026-03-02T08:00:00Z,10\n2026-03-02T08:00:03Z,20.5\n", encoding="utf-8")
    assert read_traffic(file).rates == [10, 10, 10, 20.5, 20.5, 20.5]
    # As Excel writes it.
    file.write_text("0,1\n  \n2,3\n4,5\n", encoding="utf-8-sig")
    assert read_traffic(file).rates == [1, 1, 3, 3, 5, 5]


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_times_without_a_zone_are_utc_wherever_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    # In Berlin the second hour of this night does not exist.
    file.write_text("".join(f"2026-03-29T0{hour}:00:00,{hour}\n" for hour in (1, 2, 3)), encoding="utf-8")
    assert read_traffic(file).rates == [1] * 3600 + [2] * 3600 + [3] * 3600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1\n", "holds 1 rates, allowed: two or more"),
        ("0,1\n1,x\n", ":2: got `1,x`, allowed: a time (seconds or ISO) and a rate from 0 to 1e+09"),
        ("0,1\n1,-1\n", ":2: got `1,-1`"),
        ("0,1\n1,nan\n", ":2: got `1,nan`"),
        ("0,nan\n1,1\n2,1\n", ":1: got `0,nan`"),
        ("0,1\n1,2,3\n", ":2: got `1,2,3`"),
        ("5,1\n5,2\n", ":2: got `5`, allowed: ascending times"),
        ("0,1\n0.5,2\n1,3\n", ":2: got `0.5`, allowed: one rate a second"),
        ("0,1\n1,1e308\n", ":2: got `1,1e308`, allowed: a time (seconds or ISO) and a rate from 0 to 1e+09"),
        ("-1.7e308,1\n1.7e308,2\n", ":1: got `-1.7e308,1`"),
        ("1772438400000,1\n1772438401000,2\n", ":1: got `1772438400000,1`"),
        ("0,1\n9000000,2\n", "spans 208 days, allowed: 35 at most"),
    ],
)
def test_an_unusable_traffic_file_is_refused_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(said)):
        read_traffic(file)


def test_the_page_is_self_contained_and_has_every_figure() -> None:
    outcome = simulated(SimulationOptions(2.2, knee_rps=100, cold_start_s=30, up_window_s=300))
    text = simulation_html(outcome)
    assert "http" not in text
    assert text.count("<svg") == 3
    assert "prefers-color-scheme: dark" in text
    for row in outcome.rows()[1:]:
        assert all(f">{cell}</td>" in text for cell in row[1:])


def test_the_verb_prints_the_table_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "simulate",
        str(DIGITS),
        "--knee",
        "100",
        "--step",
        "2.2",
        "--scale-up-window",
        "300",
        "--out",
        str(tmp_path),
    ]
    assert marina.main(words) == 0
    out, err = capsys.readouterr()
    assert "more pods asked for after " in out
    assert out.endswith(f"{tmp_path}/digits/simulation.html\n")
    assert "replay the traffic" in err
    assert "note: assumed, not measured: the cold start: 30 s" in err
    assert (tmp_path / "digits/simulation.html").is_file()


@pytest.mark.parametrize("words", [["--step", "0"], ["--knee", "-1"], ["--cold-start", "1e9"]], ids=str)
def test_odd_numbers_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["simulate", str(DIGITS), *words]) == 2
    assert f"error: `{words[0]}`: got " in capsys.readouterr().err
