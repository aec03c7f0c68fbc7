"""The rules as data: what they name, how an objective changes them, and which edges they use."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rule_scenarios import ANSWERS, AT, CUDA, OTHER, PAGE, POD, groups, rules, run_rule_test
from specs import ROOT, digits_spec, make_spec, tales_spec
from tools import needs

from marina.config.errors import InputError
from marina.config.latency import EDGES_MS, EDGES_S, FIRST_EDGES_S, GAP_EDGES_S, edges_around
from marina.handlers.generation.metrics import FIRST_BUCKETS, GAP_BUCKETS
from marina.k8s.monitoring.adapter import METRICS, adapter_rules
from marina.k8s.monitoring.contract import adapter_query
from marina.k8s.monitoring.expressions import keda_query, rule_queries
from marina.k8s.monitoring.rules import budgets, recording_rules
from marina.server.java.traffic import DurationHistogram
from marina.server.watching.metrics import durations

TALES = tales_spec({"slo": {"ttft_p99_ms": 450, "itl_p99_ms": 80}, "scaling.metric": "waiting"})
PAGES = {
    *("ErrorBudgetFastBurn", "LatencyBudgetFastBurn", "MostRequestsFail", "MostRequestsSlow"),
    *("NoData", "NoPodReady"),
}


def test_only_alerts_about_what_users_notice_page() -> None:
    alerts = [rule for rule in rules(digits_spec(CUDA)).values() if "alert" in rule]
    assert {rule["alert"].removeprefix("Marina") for rule in alerts if rule["labels"]["severity"] == "page"} == PAGES
    assert {rule["labels"]["severity"] for rule in alerts} == {"page", "ticket"}


VARIANTS: list[dict[str, Any]] = [
    {},
    {"slo": None},
    {"slo.p99_ms": 1000},
    {"slo.p99_ms": 1234.5678, "slo.error_rate": 0.0},
    {"slo.error_rate": 1.0},
    {"scaling.autoscaler": "none"},
    {"scaling.min_replicas": 3, "scaling.max_replicas": 3},
    {"kubernetes.namespace": "other"},
    CUDA,
]


@pytest.mark.slow
def test_promtool_accepts_the_rules_of_every_variant(tmp_path: Path) -> None:
    tool = needs("promtool", package="prometheus")
    for number, changes in enumerate(VARIANTS):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump({"groups": groups(digits_spec(changes))}))
    files = sorted(path.name for path in tmp_path.glob("*.yaml"))
    done = subprocess.run([tool, "check", "rules", *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("SUCCESS")) == (0, len(VARIANTS)), done.stdout + done.stderr


def test_without_an_objective_no_rule_refers_to_it() -> None:
    names = set(rules(digits_spec({"slo": None})))
    assert "MarinaMostRequestsFail" in names
    assert not {name for name in names if "Budget" in name or "Objective" in name or "slow" in name.lower()}
    assert budgets(digits_spec({"slo": None})) == []


def test_without_an_autoscaler_no_alert_is_about_one() -> None:
    assert not [name for name in rules(digits_spec({"scaling.autoscaler": "none"})) if "Autoscaler" in name]


@pytest.mark.parametrize("p99_ms", [2.5, 8, 50, 89, 100, 333.3333, 1000, 1234.5678, 2000, 29999, 900_000])
def test_the_share_within_the_objective_uses_edges_that_the_server_has(p99_ms: float) -> None:
    page = durations([({}, DurationHistogram([1] * (len(EDGES_S) + 1)))])
    written = [sample.labels["le"] for sample in page.samples if "le" in sample.labels]
    asked = re.findall(r'le=~"([^"]+)"', rule_queries(digits_spec()).within(f"{p99_ms / 1000:.6g}"))
    assert len(asked) == (1 if p99_ms in EDGES_MS or p99_ms > EDGES_MS[-1] else 2)
    for edge in asked:
        assert sum(bool(re.fullmatch(edge, text)) for text in written) == 1


def test_between_two_edges_answers_count_as_spread_evenly() -> None:
    assert edges_around(0.089) == (0.08, 0.09, pytest.approx(0.9))
    assert edges_around(0.05) == (0.05, 0.05, 0)
    within = rule_queries(digits_spec()).within("0.089")
    assert re.fullmatch(r"\(0\.1 \* sum by .*0\[\.\]08.* \+ 0\.9 \* sum by .*0\[\.\]09.*\)", within)


def test_an_objective_finer_than_torchserves_clock_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        recording_rules(make_spec({"slo": {"p99_ms": 0.5}, "model.batch_sizes": [1]}))
    text = "spec.yaml: `slo.p99_ms`: got 0.5, allowed: at least 1, because TorchServe counts in milliseconds"
    assert caught.value.message == text


def test_rules_name_only_their_own_model_and_namespace() -> None:
    for rule in rules(digits_spec({"kubernetes.namespace": "other"})).values():
        assert 'namespace="other"' in rule["expr"]
        assert 'namespace="marina"' not in rule["expr"]
        assert "digits" in rule["expr"]


def test_a_changed_objective_changes_the_rules_that_name_it_and_no_others() -> None:
    before, after = (rules(digits_spec({"slo.p99_ms": value})) for value in (50, 60))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"model:inference_slow:rate5m", "MarinaP99OverObjective"}
    after = rules(digits_spec({"slo.error_rate": 0.002}))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"MarinaErrorBudgetFastBurn", "MarinaErrorBudgetSlowBurn"}


def test_the_edges_for_tokens_are_those_of_the_workers_histograms() -> None:
    assert (FIRST_EDGES_S, GAP_EDGES_S) == (FIRST_BUCKETS, GAP_BUCKETS)


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
def test_late_first_tokens_burn_their_budget(late: bool, tmp_path: Path) -> None:
    own = 'namespace="marina",pod="tales-6b5f9c7d8c-x2k4p",model="tales"'
    # 100 answers a minute, of 11 tokens each; after three good hours, 4 of 100 begin late for an hour.
    first, fast = "0+100x240", "0+100x180 18000+96x60" if late else "0+100x240"
    edges = {"0.4": fast, "0.5": fast, "+Inf": first}
    series = {
        f"inference_time_to_first_token_seconds_count{{{own}}}": first,
        **{f'inference_time_to_first_token_seconds_bucket{{{own},le="{le}"}}': value for le, value in edges.items()},
        f"inference_time_between_tokens_seconds_count{{{own}}}": "0+1000x240",
        **{
            f'inference_time_between_tokens_seconds_bucket{{{own},le="{le}"}}': "0+1000x240"
            for le in ("0.05", "0.06", "0.08", "+Inf")
        },
        f'inference_sequences{{{own},state="waiting"}}': "3x240",
    }
    burning = 'ALERTS{alertname=~"Marina(FirstText|TokenGap).*",alertstate="firing"}'
    labels = '{alertname="MarinaFirstTextBudgetSlowBurn"}'
    waiting = {"labels": 'model:inference_waiting:sum{model="tales",namespace="marina"}', "value": 3}
    expected = [
        (f"count by (alertname) ({burning})", [{"labels": labels, "value": 1}] if late else []),
        ("model:inference_waiting:sum", [waiting]),
    ]
    tests = [{"expr": expr, "eval_time": "4h", "exp_samples": samples} for expr, samples in expected]
    asked = {"promql_expr_test": tests}
    assert run_rule_test(tmp_path, TALES, series, asked, interval_s=60, evaluated_every="2m") == ""


@pytest.mark.parametrize("metric", ["requests", "queue_time", "gpu"])
def test_kedas_query_returns_one_number(metric: str) -> None:
    device = CUDA if metric == "gpu" else {}
    assert keda_query(digits_spec({"scaling.metric": metric} | device)).startswith("sum(")


GPU_USE = {(POD, 0): 40, (POD, 1): 60, (OTHER, 0): 10, (OTHER, 1): 30}
MEASURED = {
    "gpu": {
        f'DCGM_FI_DEV_GPU_UTIL{{namespace="marina",pod="{pod}",gpu="{gpu}"}}': f"{value}x20"
        for (pod, gpu), value in GPU_USE.items()
    },
    # Of 100 requests/s, ten wait 0.4 s and are answered; the others are shed at once.
    "queue_time": {
        f'ts_queue_latency_seconds_total{{{AT},model_name="digits"}}': "0+60x20",
        f'ts_inference_requests_total{{{AT},model_name="digits"}}': "0+1500x20",
        f'{ANSWERS}{{{PAGE},code="200"}}': "0+150x20",
        f'{ANSWERS}{{{PAGE},code="503"}}': "0+1350x20",
    },
}


@pytest.mark.parametrize(
    ("changes", "by_pod"),
    [(CUDA | {"scaling.metric": "gpu", "kubernetes.resources.gpu": 2}, {POD: 50, OTHER: 20}),
     ({"scaling.metric": "queue_time"}, {POD: 0.4})],
    ids=["mean of a pod's GPUs", "wait of the answered requests"],
)  # fmt: skip
def test_keda_and_the_adapter_read_the_same(changes: dict[str, Any], by_pod: dict[str, float], tmp_path: Path) -> None:
    spec = digits_spec(changes)
    rule = next(rule for rule in adapter_rules(spec) if rule["name"]["as"] == METRICS[spec.scaling.metric])
    shown = [{"labels": f'{{pod="{pod}"}}', "value": value} for pod, value in by_pod.items()]
    expected = [
        {"expr": query, "eval_time": "4m", "exp_samples": samples}
        for query, samples in (
            (keda_query(spec), [{"labels": "{}", "value": sum(by_pod.values())}]),
            (adapter_query(rule, "marina", f"{POD}|{OTHER}"), shown),
        )
    ]
    assert not run_rule_test(tmp_path, spec, MEASURED[spec.scaling.metric], {"promql_expr_test": expected})


def test_every_alert_has_a_heading_in_the_runbook_and_no_heading_is_left_over() -> None:
    page = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")}
    spec = digits_spec(CUDA)
    alerts = {rule["alert"]: rule for model in (TALES, spec) for rule in rules(model).values() if "alert" in rule}
    assert headings == set(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
