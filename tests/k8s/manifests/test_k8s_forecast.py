"""`scaling.forecast: weekly`: what is recorded, who uses it, and how much it helps with traffic that recurs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_plans import EVIDENCE, IMAGE, planned
from specs import digits_spec
from tools import needs

from marina.k8s.manifests.objects import render_objects
from marina.k8s.monitoring.adapter import adapter_values
from marina.k8s.monitoring.rules import recording_rules
from marina.k8s.simulating import SimulationOptions, TrafficTrace, simulate
from marina.k8s.verify import verify

WEEKLY = {"scaling.forecast": "weekly"}
DAY_MIN, WEEK_MIN = 1440, 10_080


def complaints_at_22_days(folder: Path, weeks: str, now: str | None) -> str:
    """The complaints of promtool about the forecast, given the recorded rates of the weeks and the requests now."""
    spec = digits_spec(WEEKLY | {"kubernetes.monitoring.scrape_interval_s": 60})
    rule = next(rule for group in recording_rules(spec) for rule in group["rules"] if "expected" in rule["record"])
    series = {'model:inference_arrivals:rate5m{namespace="marina",model="digits"}': weeks}
    series |= {'ts_inference_requests_total{namespace="marina",model_name="digits",pod="a"}': now} if now else {}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{
            "expr": "model:inference_expected:rate", "eval_time": "528h",
            "exp_samples": [{"labels": 'model:inference_expected:rate{namespace="marina",model="digits"}',
                             "value": 100 if now else 40}],
        }],
    }  # fmt: skip
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "528h", "tests": [test]}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [rule]}]}))
    (folder / "test.yaml").write_text(yaml.safe_dump(content, width=100_000))
    command = [needs("promtool", package="prometheus"), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("now", [None, f"0+6000x{22 * DAY_MIN}"], ids=["nothing now", "more now"])
def test_the_forecast_is_the_larger_of_now_and_the_median_of_three_weeks_a_cold_start_ahead(
    now: str | None, tmp_path: Path
) -> None:
    # Each week's rate begins four minutes after the current time of the week. The forecast looks six minutes ahead,
    # five for the mean and one for the cold start, so it already sees that rate.
    known_from = DAY_MIN + 4
    weeks = f"500x{known_from - 1} 10x{WEEK_MIN - 1} 90x{WEEK_MIN - 1} 40x{WEEK_MIN}"
    assert complaints_at_22_days(tmp_path, weeks, now) == ""


def test_a_week_without_data_does_not_count(tmp_path: Path) -> None:
    weeks = f"_x{DAY_MIN + WEEK_MIN + 4} 40x{2 * WEEK_MIN}"
    assert complaints_at_22_days(tmp_path, weeks, None) == ""


def test_a_longer_cold_start_looks_further_ahead() -> None:
    spec = digits_spec(WEEKLY)
    for cold_start_s, offset in ((None, 604_440), (3, 604_470), (91, 604_380)):
        texts = [rule["expr"] for group in recording_rules(spec, cold_start_s) for rule in group["rules"]]
        assert [text for text in texts if f"offset {offset}s" in text]


@pytest.mark.slow
def test_the_autoscaler_uses_the_forecast_and_the_pods_own_rate() -> None:
    plan = planned(WEEKLY, evidence=EVIDENCE, image=IMAGE)
    pods, expected, cpu = render_objects(plan)["70-autoscaler.yaml"][0]["spec"]["metrics"]
    assert (pods["type"], cpu["type"]) == ("Pods", "ContainerResource")
    name = "inference_expected_requests_per_second"
    asked = {"name": name, "selector": {"matchLabels": {"model": "digits"}}}
    assert expected == {"type": "External", "external": {"metric": asked, "target": pods["pods"]["target"]}}
    (rule,) = adapter_values(plan.spec)["rules"]["external"]
    assert rule["name"]["as"] == name
    assert not verify(render_objects(plan), plan)
    assert "external" not in adapter_values(digits_spec())["rules"]


def test_keda_queries_prometheus_for_both() -> None:
    plan = planned(WEEKLY | {"scaling.autoscaler": "keda"}, evidence=EVIDENCE, image=IMAGE)
    triggers = render_objects(plan)["keda/scaled-object.yaml"][0]["spec"]["triggers"]
    queries = [trigger["metadata"]["query"] for trigger in triggers if trigger["type"] == "prometheus"]
    assert queries[1] == 'max(model:inference_expected:rate{namespace="marina",model="digits"})'
    assert not verify(render_objects(plan), plan)


@pytest.mark.parametrize("autoscaler", ["hpa", "keda"])
def test_weekly_traffic_finds_its_pods_ready(autoscaler: str) -> None:
    changes: dict[str, Any] = {"scaling.min_replicas": 1, "scaling.autoscaler": autoscaler} | WEEKLY
    outcome = simulate(
        planned(changes, evidence=EVIDENCE), SimulationOptions(3, knee_rps=100, cold_start_s=120, forecast=True)
    )
    weekly, without = outcome.results
    assert (weekly.label, without.label) == ("as rendered", "no forecast")
    assert weekly.missed_share == 0
    assert without.missed_share > 0.05
    assert weekly.asked_s is not None
    assert "the past weeks: the same traffic at the same times" in outcome.assumed


@pytest.mark.slow
def test_a_trace_of_weeks_is_its_own_past_and_a_short_one_counts_as_recurring() -> None:
    week_s = 604_800
    weeks = TrafficTrace("three weeks", [10.0] * week_s + [90.0] * week_s + [40.0] * week_s)
    assert weeks.rates_in_past_weeks(3 * week_s) == [90, 10]
    assert weeks.rates_in_past_weeks(2 * week_s + 150) == [50, 10]
    assert weeks.rates_in_past_weeks(100) == []
    short = TrafficTrace("a step", [10.0] * 600 + [30.0] * 600)
    assert [short.rates_in_past_weeks(at) for at in (0, 600, 750, 900, 1300)] == [[], [10], [20], [30], []]
