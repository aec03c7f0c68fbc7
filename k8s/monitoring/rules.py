"""Recording and alerting rules as groups of plain data, in the form that a PrometheusRule and a rule file share.

The objective's error budget is watched over several windows at once: an alert needs a long window, so that a short
disturbance does not fire it, and a short one, so that it ends when the trouble does. Shares over long windows are sums
of recorded rates, so that every request has the same weight and no query reads days of histograms."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marina.config.errors import InputError
from marina.config.spec import Spec
from marina.k8s.monitoring.alerts import Alert, state_alerts
from marina.k8s.monitoring.expressions import (
    ANSWERED,
    EXPECTED,
    FAILED,
    FIRST,
    GAP,
    GOOD,
    RULE_INTERVAL_S,
    SHED,
    WAITING,
    Queries,
    forecast_lead_s,
    objective_s,
    rule_queries,
    scaling_queries,
)
from marina.k8s.monitoring.workloads import DEPLOYMENT, Workload

# The objective is a p99, so 1 % of the good answers may be slower.
LATENCY_BUDGET = 0.01
# Long window, short window, and how many times too fast the budget is being spent. At 14.4, a month's budget lasts two
# days.
FAST = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
SLOW = (("1d", "2h", 3.0), ("3d", "6h", 1.0))
# Fewer bad requests than this prove nothing, however few requests there were in all.
LEAST_BAD = 10
_PROBLEMS = {
    "inference_failed": "requests fail",
    "inference_slow": "answers are slower than the objective",
    "inference_late_first": "first tokens are later than the objective",
    "inference_long_gaps": "gaps between tokens are longer than the objective",
}
_SHARES = (0.5, 0.9, 0.99)
# Less than the five minutes after which Prometheus drops an old sample.
_LONG_INTERVAL_S = 120
_OUTAGE_SHARE = 0.5

Group = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """How large a share of `part` in `whole` the objective allows; both are names of recorded rates."""

    name: str
    part: str
    whole: str
    share: float


def recording_rules(spec: Spec, cold_start_s: float | None = None) -> list[Group]:
    """The rules that record what the alerts and the dashboard read instead of raw series, and the autoscaler's
    forecast."""
    queries, limit = rule_queries(spec), _limit(spec)
    rates = {
        "inference_arrivals:rate5m": queries.arrivals(),
        "inference_answered:rate5m": queries.answers(ANSWERED),
        "inference_good:rate5m": queries.answers(GOOD),
        "inference_failed:rate5m": queries.answers_or_zero(FAILED),
        "inference_shed:rate5m": queries.answers_or_zero(SHED),
        "inference_shed:ratio_rate5m": _ratio(queries, "inference_shed", "inference_answered"),
        "inference_failed:ratio_rate5m": _ratio(queries, "inference_failed", "inference_answered"),
        **({"inference_slow:rate5m": queries.slow(limit)} if limit else {}),
        **_token_rates(spec, queries),
        **({"inference_cost_per_10k:rate5m": queries.cost(spec.cost)} if spec.cost else {}),
        **{f"inference_duration_seconds:p{share * 100:g}_rate5m": queries.latency(share) for share in _SHARES},
    }
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    for budget in budgets(spec):
        rates[f"{budget.part}:ratio_rate5m"] = _ratio(queries, budget.part, budget.whole)
        for window in sorted({window for pair in FAST + SLOW for window in pair[:2]} - {"5m"}):
            ratio = queries.recorded_ratio(budget.part, budget.whole, window)
            (short if window in ("30m", "1h") else long)[f"{budget.part}:ratio_rate{window}"] = ratio
    if spec.scaling.forecast == "weekly":
        short[EXPECTED] = queries.expected(scaling_queries(spec).arrivals(), forecast_lead_s(cold_start_s))
    groups = [_group(spec, "rates", RULE_INTERVAL_S, _records(spec, rates | short))]
    return groups + ([_group(spec, "budget", _LONG_INTERVAL_S, _records(spec, long))] if long else [])


def alert_rules(spec: Spec, workload: Workload = DEPLOYMENT) -> list[Group]:
    """All alerts: `severity: page` wakes somebody up, `ticket` can wait for the morning."""
    queries, limit = rule_queries(spec, workload), _limit(spec)
    alerts = [alert for budget in budgets(spec) for alert in _burn_alerts(queries, budget)]
    most = max(_OUTAGE_SHARE, spec.slo.error_rate) if spec.slo else _OUTAGE_SHARE
    alerts.append(_outage_alert(queries, "MarinaMostRequestsFail", "inference_failed", most))
    if limit:
        alerts.append(_outage_alert(queries, "MarinaMostRequestsSlow", "inference_slow", _OUTAGE_SHARE))
        alerts.append(_p99_alert(queries, limit))
    groups = {"objective": alerts, "state": state_alerts(spec, queries)}
    return [
        _group(spec, name, RULE_INTERVAL_S, [alert.rule(spec) for alert in group]) for name, group in groups.items()
    ]


def budgets(spec: Spec) -> list[Budget]:
    """The objective's budgets. Empty without an objective."""
    if spec.slo is None:
        return []
    errors = Budget("Error", "inference_failed", "inference_answered", spec.slo.error_rate)
    token_budgets = {
        "FirstText": ("inference_late_first", "inference_first", spec.slo.ttft_p99_ms),
        "TokenGap": ("inference_long_gaps", "inference_gaps", spec.slo.itl_p99_ms),
    }
    return [
        errors,
        Budget("Latency", "inference_slow", "inference_good", LATENCY_BUDGET),
        *(Budget(name, part, whole, LATENCY_BUDGET) for name, (part, whole, limit) in token_budgets.items() if limit),
    ]


def _token_rates(spec: Spec, queries: Queries) -> dict[str, str]:
    """The rates of a language model: first tokens, gaps between tokens, how many were late, and requests that wait."""
    if not spec.model.writes:
        return {}
    rates = {
        "inference_waiting:sum": queries.sequences(WAITING),
        "inference_first:rate5m": queries.count_rate(FIRST),
        "inference_gaps:rate5m": queries.count_rate(GAP),
        "inference_first_seconds:p99_rate5m": queries.quantile(0.99, queries.of(f"{FIRST}_bucket")),
        "inference_gap_seconds:p99_rate5m": queries.quantile(0.99, queries.of(f"{GAP}_bucket")),
    }
    if spec.slo and spec.slo.ttft_p99_ms:
        rates["inference_late_first:rate5m"] = queries.late(FIRST, spec.slo.ttft_p99_ms / 1000)
    if spec.slo and spec.slo.itl_p99_ms:
        rates["inference_long_gaps:rate5m"] = queries.late(GAP, spec.slo.itl_p99_ms / 1000)
    return rates


def _burn_alerts(queries: Queries, budget: Budget) -> Iterable[Alert]:
    text = _PROBLEMS[budget.part]
    limit = f"{budget.share * 100:g} %"
    for burn, windows, severity in (("BudgetFastBurn", FAST, "page"), ("BudgetSlowBurn", SLOW, "ticket")):
        # No share exceeds 1, so a large budget cannot be spent that fast.
        arms = [_burning(queries, budget, *window) for window in windows if budget.share * window[2] < 1]
        if arms:
            yield Alert(
                f"Marina{budget.name}{burn}",
                " or ".join(arms),
                summary=f"{{{{ $value | humanizePercentage }}}} of {text} (allowed: {limit})",
                severity=severity,
            )


def _burning(queries: Queries, budget: Budget, long: str, short: str, factor: float) -> str:
    limit = f"{factor * budget.share:.6g}"
    over = [f"{queries.recorded(f'{budget.part}:ratio_rate{window}')} > {limit}" for window in (short, long)]
    return f"({' and '.join(over)} and {queries.recorded_count(budget.part, long)} >= {LEAST_BAD})"


def _outage_alert(queries: Queries, name: str, part: str, most: float) -> Alert:
    share, rate = queries.recorded(f"{part}:ratio_rate5m"), queries.recorded(f"{part}:rate5m")
    return Alert(
        name,
        f"{share} > {most:g} and 300 * {rate} >= {LEAST_BAD}",
        for_="1m",
        summary=f"{{{{ $value | humanizePercentage }}}} of {_PROBLEMS[part]}",
        severity="page",
    )


def _p99_alert(queries: Queries, limit: str) -> Alert:
    p99, slow = (queries.recorded(name) for name in ("inference_duration_seconds:p99_rate5m", "inference_slow:rate5m"))
    return Alert(
        "MarinaP99OverObjective",
        # In a quiet night, the p99 is a single answer.
        f"{p99} > {limit} and 900 * {slow} >= {LEAST_BAD}",
        for_="15m",
        summary=f"p99 is {{{{ $value | humanizeDuration }}}}, the objective is {float(limit) * 1000:g} ms",
    )


def _limit(spec: Spec) -> str | None:
    if spec.slo is not None and spec.slo.p99_ms < 1:
        text = f"got {spec.slo.p99_ms:g}, allowed: at least 1, because TorchServe counts in milliseconds"
        raise InputError(f"{spec.file}: `slo.p99_ms`: {text}")
    return objective_s(spec)


def _ratio(queries: Queries, part: str, whole: str) -> str:
    return f"{queries.recorded(f'{part}:rate5m')} / {queries.recorded(f'{whole}:rate5m')}"


def _records(spec: Spec, expressions: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"record": f"model:{name}", "expr": expr, "labels": {"model": spec.name}} for name, expr in expressions.items()
    ]


def _group(spec: Spec, name: str, interval_s: int, rules: list[dict[str, Any]]) -> Group:
    return {"name": f"{spec.kubernetes.namespace}.{spec.name}.{name}", "interval": f"{interval_s}s", "rules": rules}
