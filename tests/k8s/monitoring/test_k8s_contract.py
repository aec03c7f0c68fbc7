"""Every expression parses and uses existing series in the right way; every fault of a page is found."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from specs import digits_spec, tales_spec
from tools import needs

from marina.config.errors import InputError
from marina.config.latency import EDGES_S
from marina.config.spec import Spec
from marina.k8s.monitoring.adapter import METRICS, RUNNING_METRIC, adapter_rules, adapter_values
from marina.k8s.monitoring.catalogue import CATALOGUE, TARGET_LABELS, find_series, page_series
from marina.k8s.monitoring.contract import adapter_query, all_expressions, metric_contract, misuses
from marina.k8s.monitoring.promql import selectors
from marina.k8s.monitoring.workloads import WORKLOADS
from marina.k8s.verify.live import check_live, check_page

CUDA = {"serving.device": "cuda", "model.precision": "fp16", "kubernetes.resources.gpu": 1}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"slo": None},
    {"slo.p99_ms": 1000},
    {"scaling.autoscaler": "keda", "scaling.metric": "queue_time"},
    {"scaling.forecast": "weekly"},
    {"serving.cache": {"redis": "redis://cache"}},
    {**CUDA, "scaling.metric": "gpu"},
]
TALES = tales_spec(
    {
        "slo": {"ttft_p99_ms": 450, "itl_p99_ms": 80},
        "scaling.metric": "waiting",
        "text.route": {"to": "small"},
        "text.sessions": {"redis": "redis://chats"},
    }
)
SPECS = [*map(digits_spec, VARIANTS), TALES]
HISTOGRAM = "inference_request_duration_seconds"


def page_of(
    *, named: dict[str, str] | None = None, without: str = "", kinds: dict[str, Any] | None = None, **labels: Any
) -> str:
    """A page with every declared metric. `named` gives values of labels, `labels` the labels of single metrics."""
    spec, registry = digits_spec(), CollectorRegistry()
    values = {"model": "digits", "model_name": "digits", "code": "200"} | (named or {})
    for series in page_series(spec):
        if series.name == without:
            continue
        own = sorted(labels.get(series.name, series.labels))
        kind = (kinds or {}).get(series.name) or {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[
            series.kind
        ]
        edges = {"buckets": EDGES_S} if kind is Histogram else {}
        kind(series.name, "-", own, registry=registry, **edges).labels(*(values.get(label, "x") for label in own))
    return generate_latest(registry).decode()


def faults(page: str, changes: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    return [(finding.object, finding.rule) for finding in check_page(digits_spec(changes), page, "here")]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_every_expression_parses_and_keeps_the_contract(spec: Spec) -> None:
    assert metric_contract(spec)
    texts = [expression.text for expression in all_expressions(spec)]
    assert len(texts) > 70
    assert not [text for text in texts if "$" in text.replace('"$1"', "") or "<<" in text]


def test_prometheus_itself_parses_every_expression(tmp_path: Path) -> None:
    tool = needs("promtool", package="prometheus")
    texts = [expression.text for spec in SPECS for expression in all_expressions(spec)]
    rules = [{"record": f"x:{number}:y", "expr": text} for number, text in enumerate(dict.fromkeys(texts))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(
        [tool, "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_declared_series_is_used() -> None:
    named = {need.series.name for spec in SPECS for need in metric_contract(spec)}
    named |= {need.series.name for need in metric_contract(SPECS[0], WORKLOADS["argo-rollouts"])}
    assert named == set(CATALOGUE)


def test_each_series_of_the_cluster_names_its_exporter() -> None:
    sources = {need.series.name: need.series.source for need in metric_contract(digits_spec(CUDA))}
    assert sources["kube_deployment_spec_replicas"] == "kube-state-metrics"
    assert sources["container_memory_working_set_bytes"] == "cadvisor"
    assert sources["DCGM_FI_DEV_FB_USED"] == "dcgm"
    assert sources["marina_ready"] == "page"


def test_a_used_series_names_the_expressions_that_use_it() -> None:
    named = {need.series.name: need for need in metric_contract(digits_spec())}
    assert named["marina_queued"].labels == {"model", "namespace"}
    assert named["marina_queued"].places == ("panel Queued and in flight",)
    assert "adapter inference_requests_per_second" in named["ts_inference_requests_total"].places


MISUSES = [
    ("rate(marina_ready[5m])", "`marina_ready`: rate of a gauge"),
    ("sum(ts_inference_requests_total)", "`ts_inference_requests_total`: a counter only rises: use its rate"),
    (f"histogram_quantile(0.9, {HISTOGRAM}_bucket)", f"`{HISTOGRAM}_bucket`: a counter only rises: use its rate"),
    ("marina_redy", "`marina_redy`: unknown metric, did you mean `marina_ready`?"),
    (HISTOGRAM, f"`{HISTOGRAM}`: unknown metric"),
    ("marina_ready_bucket", "`marina_ready_bucket`: unknown metric"),
    ('marina_ready{versoin="1"}', "`marina_ready`: has no label `versoin`"),
    ("sum by (code) (marina_ready)", "`marina_ready`: has no label `code`"),
    ("marina_ready / on (le) marina_queued", "`marina_ready`: has no label `le`"),
    ('label_replace(marina_ready, "a", "$1", "b", "(.*)")', "`marina_ready`: has no label `b`"),
    ('label_join(marina_ready, "a", "-", "model", "b")', "`marina_ready`: has no label `b`"),
    ('sum by (b) (count_values("a", marina_ready))', "`marina_ready`: has no label `b`"),
    ('label_replace(sum by (a) (marina_ready), "a", "$1", "model", "(.*)")', "`marina_ready`: has no label `a`"),
]


@pytest.mark.parametrize(("expression", "text"), MISUSES)
def test_a_misused_series_is_reported(expression: str, text: str) -> None:
    told = [fault for selector in selectors(expression) for fault in misuses(selector, set())]
    assert any(fault.startswith(text) for fault in told), told


@pytest.mark.parametrize(
    "expression",
    [
        "absent(ts_inference_requests_total)",
        "sum by (namespace, pod, le) (rate(inference_batch_size_bucket[5m]))",
        'sum by (made) (label_replace(marina_ready, "made", "$1", "model", "(.*)"))',
        'sum by (made) (label_replace(marina_ready, ("made"), "x", "", ""))',
        'sum by (pair) (label_join(marina_ready, "pair", "-", "namespace", "model"))',
        'sum by (state) (count_values by (model) ("state", marina_ready))',
        'sum by (state, model) (count_values by (model) (("state"), marina_ready))',
        "max_over_time(rate(ts_inference_requests_total[1m])[10m:1m])",
        'ts_inference_requests_total{namespace!="",pod!=""}',
        "-(marina_ready) * on (namespace) group_left marina_queued",
        "marina_ready / ignoring (worker) marina_queued",
    ],
)
def test_a_correct_expression_has_no_misuse(expression: str) -> None:
    assert [fault for selector in selectors(expression) for fault in misuses(selector, set())] == []


def test_a_rule_with_an_unknown_series_is_an_error_that_names_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CATALOGUE, "marina_queued")
    with pytest.raises(InputError) as caught:
        metric_contract(digits_spec())
    assert caught.value.message.startswith("panel Queued and in flight: `marina_queued`: unknown metric")


def test_text_that_is_not_promql_is_an_error() -> None:
    with pytest.raises(InputError, match="not PromQL"):
        selectors("sum(rate(x[5 m])")


def test_a_complete_page_has_no_finding() -> None:
    assert faults(page_of()) == []


def test_a_missing_metric_is_reported() -> None:
    assert faults(page_of(without="marina_queued")) == [("marina_queued", "metric-missing")]


def test_a_metric_of_another_type_is_found() -> None:
    page = page_of(kinds={"marina_ready": Counter, HISTOGRAM: Gauge})
    assert faults(page) == [(HISTOGRAM, "metric-type"), ("marina_ready", "metric-type")]


def test_a_metric_without_a_used_label_is_found() -> None:
    page = page_of(inference_stage_duration_seconds={"model"})
    (finding,) = check_page(digits_spec(), page, "http://here/metrics")
    text = "inference_stage_duration_seconds: has no label `stage`, but it is used by `panel Stages of a batch`"
    assert str(finding) == f"http://here/metrics: {text}"
    assert (finding.level, finding.rule) == ("error", "metric-label")


def test_a_page_of_another_model_is_found() -> None:
    other = faults(page_of(named={"model": "other", "model_name": "other"}))
    assert {rule for _, rule in other} == {"metric-model"}


@pytest.mark.parametrize("p99_ms", [42, 50, 60])
def test_a_histogram_without_the_edges_that_the_rules_need_is_found(p99_ms: float) -> None:
    assert faults(page_of(), {"slo.p99_ms": p99_ms}) == []
    coarse = "\n".join(line for line in page_of().splitlines() if not re.search(r'le="0\.0[456]"', line)) + "\n"
    missing = faults(coarse, {"slo.p99_ms": p99_ms})
    assert set(missing) == {(f"{HISTOGRAM}_bucket", "metric-edge")}


@pytest.mark.parametrize("label", sorted(TARGET_LABELS))
def test_a_label_that_a_scrape_adds_is_found(label: str) -> None:
    page = page_of(marina_queued={"model", label})
    assert faults(page) == [("marina_queued", "metric-collision")]


def test_a_server_that_is_not_there_and_a_page_that_is_none_are_errors() -> None:
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/metrics: no metrics page there"):
        check_live(digits_spec(), "http://127.0.0.1:9")
    with pytest.raises(InputError, match="here: not a metrics page"):
        check_page(digits_spec(), "<html>a page</html>", "here")


def test_the_adapters_queries_are_filled_in_as_the_adapter_does() -> None:
    spec = digits_spec({"kubernetes.monitoring.scrape_interval_s": 30})
    rules = {rule["name"]["as"]: rule for rule in adapter_rules(spec)}
    assert set(rules) == {*METRICS.values(), RUNNING_METRIC}
    query = adapter_query(rules["inference_requests_per_second"], "shop", "a|b")
    assert query == 'sum(rate(ts_inference_requests_total{namespace="shop",pod=~"a|b"}[120s])) by (pod)'
    renamed = next(rule for rule in adapter_rules(spec) if "exported_pod!=" in rule["seriesQuery"])
    exported = adapter_query(renamed, "shop", "a")
    assert exported == 'avg(DCGM_FI_DEV_GPU_UTIL{exported_namespace="shop",exported_pod=~"a"}) by (exported_pod)'
    waiting = adapter_query(rules["inference_waiting_requests"], "shop", "a")
    assert waiting == 'sum(inference_sequences{namespace="shop",pod=~"a",state="waiting"}) by (pod)'


def test_no_two_rules_of_the_adapter_find_the_same_series() -> None:
    queries = [rule["seriesQuery"] for rule in adapter_rules(digits_spec())]
    assert len(set(queries)) == len(queries)
    with_gpus = [query for query in queries if query.startswith("DCGM")]
    assert ['exported_pod=""' in query for query in with_gpus] == [True, False]
    assert ['exported_pod!=""' in query for query in with_gpus] == [False, True]


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("http://prometheus.monitoring:9090", ("http://prometheus.monitoring", 9090, "")),
        ("https://metrics.example/prometheus/", ("https://metrics.example", 443, "/prometheus")),
        ("http://metrics.example", ("http://metrics.example", 80, "")),
        ("http://[fd00::1]:9090", ("http://[fd00::1]", 9090, "")),
    ],
)
def test_the_adapters_values_have_the_address_of_prometheus(address: str, parts: tuple[str, int, str]) -> None:
    told = adapter_values(digits_spec({"scaling.prometheus": address}))["prometheus"]
    assert (told["url"], told["port"], told["path"]) == parts


def test_the_adapters_values_do_not_depend_on_the_model() -> None:
    assert adapter_values(digits_spec()) == adapter_values(digits_spec({"name": "other", "slo.p99_ms": 60}))


def test_buckets_count_and_sum_belong_to_their_histogram() -> None:
    assert find_series(f"{HISTOGRAM}_count") is CATALOGUE[HISTOGRAM]
    assert find_series("marina_ready_count") is None
