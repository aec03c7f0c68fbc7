"""What requests cost, and how a budget changes a verdict."""

from pathlib import Path
from typing import Any

import pytest
from loadtest_rig import write_package
from queues import always, measured
from specs import make_spec
from test_loadtest_compare import comparison
from test_loadtest_report import FAILED, INVALID, PASSED, evidence, outcome, sliced

from marina.config.measured import Objective
from marina.config.record import read_package, write_json
from marina.loadtest.comparing.report import comparison_html
from marina.loadtest.judging import costs_of, costs_text, judge, with_costs
from marina.loadtest.reporting import cost_cases, cost_facts, verdict_html
from marina.loadtest.running import known_knee, next_step
from marina.loadtest.scheduling import Schedule


def costs(seen: float = 100, knee: float | None = None, **changes: Any) -> Any:
    return costs_of(make_spec({"cost": {"pod_hour": 3.6} | changes}), seen, knee)


def test_a_pod_is_paid_by_the_hour_however_few_requests_it_gets() -> None:
    assert costs(100).at_seen == pytest.approx(0.1)
    assert costs(1).at_seen == pytest.approx(10)
    assert costs(0).at_seen is None
    assert costs_of(make_spec(), 100) is None


def test_the_target_is_the_specs_or_the_knee_with_headroom() -> None:
    stated = make_spec({"cost.pod_hour": 3.6, "scaling.target": 50})
    money = costs_of(stated, 100, 400)
    assert money is not None
    assert (money.target_rps, money.at_target) == (50, pytest.approx(0.2))
    assert (costs(100, 400).target_rps, costs(100).target_rps) == (280, None)


def test_the_budget_applies_to_the_target_rate_or_else_to_the_measured_one() -> None:
    assert costs(10, 400, budget_per_10k=0.05).over is None
    over = costs(10, budget_per_10k=0.05).over
    assert over.id == "over-budget"
    assert over.text == "10,000 requests cost 1 USD at 10 requests/s per pod, allowed: 0.05"
    assert costs(10).over is None


def test_a_missed_budget_fails_but_an_invalid_verdict_stays_invalid() -> None:
    schedule = Schedule(arrivals="poisson", rate=100, warmup_s=0, duration_s=40)
    run = measured(always(0.001), schedule, 50, 0)
    good = judge(run, Objective(p99_ms=50, error_rate=0.001, throughput_rps=None))
    over, within = costs(100, budget_per_10k=0.05), costs(100, budget_per_10k=0.5)
    assert [with_costs(good, each).status for each in (over, within, None)] == ["FAIL", "PASS", "PASS"]
    assert [reason.id for reason in with_costs(good, over).every_reason()] == ["over-budget"]
    invalid = good.model_copy(update={"status": "INVALID"})
    assert with_costs(invalid, over).status == "INVALID"


def test_a_page_says_no_more_than_was_judged() -> None:
    too_much = costs(100, budget_per_10k=0.05)
    over = with_costs(PASSED.verdict, too_much)
    idle = Objective(p99_ms=50, error_rate=0.001, throughput_rps=900)
    for verdict, meaning in (
        (over, "The service met its objective, but costs more than its budget."),
        (with_costs(FAILED.verdict, too_much), "The service missed its objective."),
        (judge(PASSED.pooled, idle), "The measurement does not show whether the service met its whole objective."),
        (INVALID.verdict, "The measurement cannot be trusted, so it says nothing about the service."),
    ):
        assert meaning in verdict_html(PASSED.model_copy(update={"verdict": verdict}))
    compared = comparison().model_copy(update={"reasons": over.reasons, "figures": ()})
    assert "But it costs more than its budget." in comparison_html(compared)


def test_a_verdict_that_is_undecided_is_decided_before_a_cheaper_setting_is_sought() -> None:
    unclear = outcome(sliced(20, slow=19))
    step = next_step(
        unclear.model_copy(update={"verdict": with_costs(unclear.verdict, costs(budget_per_10k=0.05))}), Path()
    )
    assert step is not None
    assert "--max-duration" in step


def test_costs_are_shown_as_text_on_the_page_and_as_a_test_case() -> None:
    money = costs(100, 400, budget_per_10k=0.01, currency="EUR")
    assert costs_text(money) == (
        "cost of 10,000 requests: 0.0357 EUR at 280 requests/s per pod (target), "
        "0.1 EUR at 100 requests/s per pod (measured)"
    )
    assert cost_facts(money)["Budget"] == "0.01 EUR"
    assert [(case.name, case.status) for case in cost_cases(money)] == [
        ("10,000 requests cost at most 0.01 EUR", "FAIL")
    ]
    assert cost_cases(costs()) == []


def test_the_knee_of_another_package_is_not_used(tmp_path: Path) -> None:
    sha256 = write_package(tmp_path)
    package = read_package(tmp_path)
    assert known_knee(tmp_path, package) is None
    for recorded, status, knee in ((sha256, "PASS", 75), ("ab", "PASS", None), (sha256, "INVALID", None)):
        measured = evidence().model_copy(update={"package": recorded, "status": status})
        write_json(tmp_path / "evidence.json", measured.to_data())
        assert known_knee(tmp_path, package) == knee
