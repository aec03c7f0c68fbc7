"""The dashboard as Grafana would read it: a grid without overlaps, a unit and a description everywhere."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, planned, the_only
from rule_scenarios import AT, OTHER, PAGE, POD, run_rule_test, traffic
from specs import digits_spec, tales_spec

from marina.k8s.manifests.objects import dashboard_text
from marina.k8s.monitoring.dashboard import render_dashboard
from marina.k8s.monitoring.rules import recording_rules

CUDA = {"serving.device": "cuda", "model.precision": "fp16", "kubernetes.resources.gpu": 1}
CACHE = {"serving.cache": {"redis": "redis://cache"}}
VARIANTS = [{}, {"slo": None}, {"cost.pod_hour": 0.2}, {"slo.error_rate": 0.0}, CUDA, CACHE]
COST = {"cost.pod_hour": 3.6, "cost.budget_per_10k": 0.5, "cost.currency": "EUR"}
# Units that Grafana knows by these names.
UNITS = {"bytes", "cps", "none", "percent", "percentunit", "reqps", "s"}


def charts(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {panel["title"]: panel for panel in page["panels"] if panel["type"] != "row"}


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_every_panel_has_a_place_of_its_own(changes: dict[str, Any]) -> None:
    panels = render_dashboard(digits_spec(changes))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for place, other in combinations(places, 2):
        beside = place["x"] + place["w"] <= other["x"] or other["x"] + other["w"] <= place["x"]
        below = place["y"] + place["h"] <= other["y"] or other["y"] + other["h"] <= place["y"]
        assert beside or below, (place, other)


def test_in_another_namespace_a_dashboard_has_another_file_title_and_identity() -> None:
    seen = []
    for namespace in ("staging", "production"):
        plan = planned({"kubernetes.namespace": namespace})
        ((file, text),) = the_only(plan, "ConfigMap", "digits-dashboard")["data"].items()
        seen.append((file, json.loads(text)["title"], json.loads(text)["uid"]))
    assert all(len(set(texts)) == 2 for texts in zip(*seen, strict=True))


def test_a_rate_covers_several_scrapes_if_pods_are_read_less_often_than_grafana_assumes() -> None:
    steps = {15: {None}, 60: {"60s"}}
    for interval_s, expected in steps.items():
        page = render_dashboard(digits_spec({"kubernetes.monitoring.scrape_interval_s": interval_s}))
        targets = [target for panel in charts(page).values() for target in panel["targets"]]
        rates = [target for target in targets if "$__rate_interval" in target["expr"]]
        assert {target.get("interval") for target in rates if "container_" not in target["expr"]} == expected
        assert {target.get("interval") for target in targets if "container_" in target["expr"]} == {None}


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_every_panel_has_a_description_and_a_unit(changes: dict[str, Any]) -> None:
    shown = charts(render_dashboard(digits_spec(changes)))
    assert len(shown) == sum(panel["type"] != "row" for panel in render_dashboard(digits_spec(changes))["panels"])
    for title, panel in shown.items():
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, title
        assert panel["targets"], title
        names = [target["refId"] for target in panel["targets"]]
        assert names == sorted(set(names)), title
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["legendFormat"] or panel["type"] == "table", title


def test_features_that_a_server_does_not_use_have_no_panel() -> None:
    saved_work = {"Kept answers", "Redis", "Short prompts", "Conversations"}
    shown = [
        saved_work & charts(render_dashboard(spec)).keys()
        for spec in (
            digits_spec(),
            digits_spec({"serving.cache": {}}),
            digits_spec(CACHE),
            tales_spec({"text.route": {"to": "small"}}),
            tales_spec({"text.sessions": {"redis": "redis://chats"}}),
        )
    ]
    assert shown == [set(), {"Kept answers"}, {"Kept answers", "Redis"}, {"Short prompts"}, {"Conversations"}]


def test_the_times_of_streamed_text_have_a_median_a_p99_and_their_limit() -> None:
    shown = charts(render_dashboard(tales_spec({"slo.ttft_p99_ms": 300, "slo.itl_p99_ms": 50})))
    for title, limit_s in (("First text", 0.3), ("Between tokens", 0.05)):
        quantiles = {query["legendFormat"]: query["expr"].partition(",")[0] for query in shown[title]["targets"]}
        assert quantiles == {"p50": "histogram_quantile(0.5", "p99": "histogram_quantile(0.99"}
        assert shown[title]["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == limit_s


@pytest.mark.slow
def test_two_kube_state_metrics_draw_one_line_with_the_right_number(tmp_path: Path) -> None:
    shown = charts(render_dashboard(digits_spec()))
    available = next(query for query in shown["Replicas"]["targets"] if query["legendFormat"] == "available")["expr"]
    restarts = shown["Restarts"]["targets"][-1]["expr"]
    series = {
        f'{name},instance="{exporter}"}}': values
        for name, values in (
            ('kube_deployment_status_replicas_available{namespace="marina",deployment="digits"', "3x40"),
            (f'kube_pod_container_status_restarts_total{{{AT},container="server"', "0x20 1x20"),
        )
        for exporter in "ab"
    }
    expected = [
        {
            "expr": expr.replace("$namespace", "marina").replace("$model", "digits"),
            "eval_time": "7m",
            "exp_samples": [sample],
        }
        for expr, sample in (
            (available, {"labels": '{namespace="marina"}', "value": 3}),
            (f"round({restarts})", {"labels": f'{{pod="{POD}",container="server"}}', "value": 1}),
        )
    ]
    assert not run_rule_test(tmp_path, digits_spec(), series, {"promql_expr_test": expected})


def test_thresholds_begin_without_a_value_and_rise() -> None:
    for title, panel in charts(render_dashboard(digits_spec())).items():
        first, *rest = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert first is None, title
        assert rest == sorted(rest), title


def test_bad_values_are_red() -> None:
    shown = charts(render_dashboard(digits_spec()))
    colours = {
        title: [step["color"] for step in shown[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        for title in ("p99", "Ready", "Budget burn", "Within the objective")
    }
    assert colours == {
        "p99": ["green", "red"],
        "Ready": ["red", "green"],
        "Budget burn": ["green", "yellow", "red"],
        "Within the objective": ["red", "green"],
    }


def test_namespace_model_and_data_source_are_variables() -> None:
    variables = {variable["name"]: variable for variable in render_dashboard(digits_spec())["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "model"]
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["namespace"]["current"]["value"] == "marina"
    assert variables["model"]["current"]["value"] == "digits"
    assert variables["model"]["definition"] == 'label_values(marina_ready{namespace="$namespace"}, model)'


def test_no_expression_has_the_specs_own_names_where_a_variable_belongs() -> None:
    for panel in charts(render_dashboard(digits_spec({"kubernetes.namespace": "other"}))).values():
        for target in panel["targets"]:
            assert 'namespace="$namespace"' in target["expr"]
            assert "digits" not in target["expr"]
            assert "other" not in target["expr"]


def test_the_objective_is_drawn_where_latency_and_errors_are() -> None:
    shown = charts(render_dashboard(digits_spec({"slo.p99_ms": 42, "slo.error_rate": 0.003})))
    limits = {
        title: [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]][1:]
        for title, panel in shown.items()
    }
    assert limits["Latency"] == limits["p99"] == [0.042]
    assert limits["Failed and shed"] == limits["Failed"] == [0.003]
    assert limits["Within the objective"] == [0.99]
    assert shown["Latency"]["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"] == {"mode": "dashed"}
    assert shown["Latency"]["fieldConfig"]["defaults"]["custom"]["axisSoftMax"] > 0.042


def test_the_autoscalers_target_is_a_line_if_it_is_known() -> None:
    def steps(page: dict[str, Any]) -> list[Any]:
        return charts(page)["Requests per pod"]["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]

    assert steps(render_dashboard(digits_spec())) == []
    assert steps(render_dashboard(digits_spec(), 140.0))[0]["value"] == 140.0
    written = {
        name: json.loads(dashboard_text(planned(changes, evidence=EVIDENCE, image=IMAGE)))
        for name, changes in (
            ("measured", {}),
            ("stated", {"scaling.target": 70}),
            ("another metric", {"scaling.metric": "queue_time"}),
        )
    }
    assert [step["value"] for step in steps(written["measured"])] == [planned({}, evidence=EVIDENCE).target_rps_per_pod]
    assert [step["value"] for step in steps(written["stated"])] == [70]
    assert steps(written["another metric"]) == []


def test_without_an_objective_no_panel_compares_with_it() -> None:
    shown = charts(render_dashboard(digits_spec({"slo": None})))
    assert "Within the objective" not in shown
    assert "Budget burn" not in shown
    assert "Latency" in shown


def test_panels_of_gpus_come_with_gpus() -> None:
    with_gpus, without = (set(charts(render_dashboard(digits_spec(changes)))) for changes in (CUDA, {}))
    assert with_gpus - without == {"GPU memory in use", "GPU memory reserved", "GPU utilisation"}


def test_the_dashboard_is_the_same_every_time_and_differs_between_namespaces() -> None:
    here, again, there = (
        render_dashboard(digits_spec({"kubernetes.namespace": name})) for name in ("here", "here", "there")
    )
    assert json.dumps(here) == json.dumps(again)
    assert here["uid"] != there["uid"]
    assert len(render_dashboard(digits_spec({"name": "x" * 40}))["uid"]) <= 40


def test_a_changed_objective_changes_its_lines_and_nothing_else() -> None:
    before, after = (charts(render_dashboard(digits_spec({"slo.p99_ms": value}))) for value in (50, 60))
    assert {title for title in before if before[title] != after[title]} == {"p99", "Latency", "Within the objective"}


@pytest.mark.slow
def test_pods_cost_even_if_they_are_not_ready_or_get_no_requests(tmp_path: Path) -> None:
    # 100 requests/s on one of two pods, which cost 3.6 an hour each: 20 for a million.
    series = traffic("0+1500x80") | {
        f"marina_ready{{{PAGE}}}": "1x80",
        f'marina_ready{{namespace="marina",pod="{OTHER}",model="digits"}}': "0x80",
    }
    test = {
        "promql_expr_test": [
            {
                "expr": "round(model:inference_cost_per_10k:rate5m, 0.001)",
                "eval_time": "15m",
                "exp_samples": [{"labels": '{model="digits",namespace="marina"}', "value": 0.2}],
            }
        ]
    }
    assert not run_rule_test(tmp_path, digits_spec(COST), series, test)


def test_padding_is_that_of_each_request_however_many_rows_it_has_or_none(tmp_path: Path) -> None:
    # Ten requests/s: of two lists of three texts each, which run as four rows, and of eight answers that were kept.
    series = {f"inference_batch_size_sum{{{PAGE}}}": "0+150x20", f"inference_padding_rows_total{{{PAGE}}}": "0+30x20"}
    (shown,) = (panel["targets"] for panel in render_dashboard(digits_spec())["panels"] if panel["title"] == "Padding")
    query = shown[0]["expr"].replace("$__rate_interval", "1m").replace("$namespace", "marina")
    sample = {"labels": '{namespace="marina"}', "value": 0.2}
    asked = {"expr": query.replace("$model", "digits"), "eval_time": "4m", "exp_samples": [sample]}
    assert not run_rule_test(tmp_path, digits_spec(), series, {"promql_expr_test": [asked]})


def test_the_cost_has_a_panel_with_a_line_at_its_budget() -> None:
    panels = {panel["title"]: panel for panel in render_dashboard(digits_spec(COST))["panels"]}
    shown = panels["Cost of 10,000"]
    assert "EUR" in shown["description"]
    assert [step["value"] for step in shown["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.5]
    assert "Cost of 10,000" not in {panel["title"] for panel in render_dashboard(digits_spec())["panels"]}
    recorded = {rule["record"] for group in recording_rules(digits_spec()) for rule in group["rules"]}
    assert "model:inference_cost_per_10k:rate5m" not in recorded
