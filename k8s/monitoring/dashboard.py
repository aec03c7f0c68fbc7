"""The Grafana dashboard of one model: whether it meets its objective, and where to look if it does not."""

import hashlib
from typing import Any

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import (
    ANSWERED,
    DURATION,
    FAILED,
    GOOD,
    SHED,
    Queries,
    dashboard_queries,
    objective_s,
)
from marina.k8s.monitoring.panels import DATASOURCE, Panel, place_panels
from marina.k8s.monitoring.pod_panels import package_panels, pod_panels
from marina.k8s.monitoring.rules import FAST, budgets
from marina.k8s.monitoring.saved_work_panels import saved_work_panels
from marina.k8s.monitoring.text_panels import text_panels
from marina.k8s.monitoring.workloads import DEPLOYMENT, Workload

# The schema version of Grafana 10. Later versions convert older dashboards by themselves.
_SCHEMA = 39
_GRAFANA_INTERVAL_S = 15


def dashboard_identity(namespace: str, name: str) -> str:
    """The hash by which Grafana identifies a service's dashboard."""
    return hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:16]


def render_dashboard(
    spec: Spec, target_rps_per_pod: float | None = None, workload: Workload = DEPLOYMENT
) -> dict[str, Any]:
    """The dashboard as plain data. `target_rps_per_pod` is the autoscaler's target, if it scales by the rate of
    requests and the target is known."""
    queries = dashboard_queries(workload)
    rows = [
        ("Objective", _objective(spec, queries)),
        ("Traffic", _traffic(spec, queries)),
        *([("Token by token", text_panels(spec, queries))] if spec.model.writes else []),
        *([("Saved work", saved_work)] if (saved_work := saved_work_panels(spec, queries)) else []),
        ("Where the time goes", _stages(queries)),
        ("Pods", pod_panels(spec, queries, target_rps_per_pod)),
        ("What runs", package_panels(queries)),
    ]
    return {
        "uid": f"marina-{dashboard_identity(spec.kubernetes.namespace, spec.name)}",
        # Grafana takes no two dashboards of one title in a folder.
        "title": f"Marina: {spec.kubernetes.namespace}/{spec.name}",
        "description": f"Lines at the objective are those of {spec.name}, whichever model is selected.",
        "tags": ["marina", "torchserve"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_alert_annotation(queries)]},
        "templating": {"list": _variables(spec)},
        "links": [],
        "panels": _with_steps(place_panels(rows), spec.kubernetes.monitoring.scrape_interval_s),
    }


def _with_steps(panels: list[dict[str, Any]], scrape_interval_s: int) -> list[dict[str, Any]]:
    """The panels with the pods' own interval where Grafana would choose too short a window for a rate: without one, it
    assumes that of the data source, by default 15 s. The series of containers have the cluster's interval."""
    for target in (target for panel in panels for target in panel.get("targets", [])):
        is_rate_of_pods = "$__rate_interval" in target["expr"] and "container_" not in target["expr"]
        if scrape_interval_s > _GRAFANA_INTERVAL_S and is_rate_of_pods:
            target["interval"] = f"{scrape_interval_s}s"
    return panels


def _objective(spec: Spec, queries: Queries) -> list[Panel]:
    p99_s = (spec.slo.p99_ms / 1000,) if spec.slo else ()
    errors = _error_limit(spec)
    p99, failed = queries.recorded("inference_duration_seconds:p99_rate5m"), "inference_failed:ratio_rate5m"
    ready = f"sum by (namespace) ({queries.of('marina_ready')})"
    burns = {
        f"{budget.name} {window}": f"{queries.recorded(f'{budget.part}:ratio_rate{window}')} / {budget.share:g}"
        for budget in budgets(spec)
        for window in ("1h", "6h")
        if budget.share
    }
    stat: dict[str, Any] = {"kind": "stat", "width": 4, "height": 6}
    panels = [
        Panel(
            "p99",
            "99 of 100 good answers in the last five minutes were faster.",
            "s",
            {"p99": p99},
            limits=p99_s,
            **stat,
        ),
        Panel(
            "Failed",
            "Share of answers with a code of 500 or more, including shed requests. Codes from 400 to 499 do not count.",
            "percentunit",
            {"failed": queries.recorded(failed)},
            limits=errors,
            **stat,
        ),
        Panel(
            "Requests", "Requests that arrive, including shed ones.", "reqps", {"arrive": queries.arrivals()}, **stat
        ),
        Panel(
            "Ready",
            "Pods that are ready to serve requests.",
            "none",
            {"pods": ready},
            limits=(1.0,),
            low_is_bad=True,
            **stat,
        ),
    ]
    if spec.cost:
        text = f"The cost of 10,000 good answers, {spec.cost.currency}. Every pod costs, even if it gets few requests."
        budget = (spec.cost.budget_per_10k,) if spec.cost.budget_per_10k else ()
        line = {"cost": queries.recorded("inference_cost_per_10k:rate5m")}
        panels.append(Panel("Cost of 10,000", text, "none", line, limits=budget, **stat))
    if burns:
        fastest = FAST[0][2]
        text = f"How many times too fast the budget is spent. Over 1 it will not last; over {fastest} in 1h, it pages."
        panels.append(Panel("Budget burn", text, "none", burns, height=6, limits=(1.0, fastest)))
    return panels


def _traffic(spec: Spec, queries: Queries) -> list[Panel]:
    limit = objective_s(spec)
    share = _error_limit(spec)
    latencies = {f"p{part * 100:g}": queries.latency(part) for part in (0.5, 0.9, 0.99)}
    panels = [
        Panel(
            "Requests by code",
            "Arrivals, and answers by status code, without codes from 400 to 499. 503 is a shed request.",
            "reqps",
            {"arrive": queries.arrivals(), "{{code}}": queries.answers(ANSWERED, "code")},
        ),
        Panel(
            "Latency",
            "Percentiles of good answers, measured by TorchServe from a request's last byte to its answer.",
            "s",
            latencies,
            limits=(float(limit),) if limit else (),
        ),
        Panel(
            "Failed and shed",
            "Shares of all answers except those with codes from 400 to 499, which are the client's fault.",
            "percentunit",
            {
                name: f"({queries.answers_or_zero(matcher)}) / {queries.answers(ANSWERED)}"
                for matcher, name in ((FAILED, "failed"), (SHED, "shed"))
            },
            limits=share,
        ),
        Panel(
            "Errors by kind",
            "Errors of the handler by name, and answers of 400 and more by code.",
            "reqps",
            {
                "{{kind}}": queries.rate(queries.of("inference_errors_total"), "kind"),
                "code {{code}}": queries.answers('code=~"[45].."', "code"),
            },
        ),
        Panel(
            "Latency distribution",
            "How long good answers took, by the buckets of the histogram.",
            "s",
            {"{{le}}": queries.rate(queries.of(f"{DURATION}_bucket", GOOD), "le")},
            kind="heatmap",
        ),
    ]
    if limit:
        within = f"{queries.within(limit)} / {queries.answers(GOOD)}"
        text = "Share of good answers within the objective, which asks for 99 %."
        line = {"within": within}
        panels.append(
            Panel("Within the objective", text, "percentunit", line, limits=(0.99,), low_is_bad=True, maximum=1)
        )
    return panels


def _stages(queries: Queries) -> list[Panel]:
    stage, batch = "inference_stage_duration_seconds", "inference_batch_size"
    p99 = queries.quantile(0.99, queries.of(f"{stage}_bucket"), "stage")
    requests, padding = (queries.rate(queries.of(name)) for name in (f"{batch}_sum", "inference_padding_rows_total"))
    return [
        Panel(
            "Stages of a batch",
            "Time that a batch spends in decoding, the model and encoding: mean and p99.",
            "s",
            {"{{stage}} mean": queries.mean(stage, "stage"), "{{stage}} p99": p99},
        ),
        Panel("Queue time", "Mean time that a request waits for a worker.", "s", {"wait": queries.queue_time()}),
        Panel(
            "Queued and in flight",
            "Requests that wait for a worker, and requests that wait for their answer, over all pods.",
            "none",
            {
                name.replace("_", " "): f"sum by (namespace) ({queries.of(f'marina_{name}')})"
                for name in ("queued", "in_flight")
            },
        ),
        Panel(
            "Connections",
            "Open connections to each pod's inference port, and connections refused per second because it was full.",
            "none",
            {
                "{{pod}}": f"sum by (pod) ({queries.of('marina_connections')})",
                "{{pod}} refused/s": queries.rate(queries.of("marina_connections_refused_total"), "pod"),
            },
        ),
        Panel(
            "Batch size",
            "Requests in a batch. 1 under load means that batches do not form.",
            "none",
            {"mean": queries.mean(batch), "p99": queries.quantile(0.99, queries.of(f"{batch}_bucket"))},
        ),
        Panel(
            "Padding",
            "Rows of padding computed for each request, because no compiled batch size fitted.",
            "none",
            {"padding": f"{padding} / {requests}"},
        ),
        Panel(
            "Log lines dropped",
            "Log lines dropped because they were not read in time. The metrics still count every request.",
            "cps",
            {"{{pod}}": queries.rate(queries.of("marina_log_lines_dropped_total"), "pod")},
        ),
    ]


def _error_limit(spec: Spec) -> tuple[float, ...]:
    # With a limit of 0 every value would be red.
    return (spec.slo.error_rate,) if spec.slo and spec.slo.error_rate else ()


def _alert_annotation(queries: Queries) -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": queries.of("ALERTS", 'alertstate="firing"'),
        "iconColor": "red",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}",
        "step": "60s",
    }


def _variables(spec: Spec) -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus", "refresh": 1}
    chosen = {"namespace": spec.kubernetes.namespace, "model": spec.name}
    definitions = {
        "namespace": "label_values(marina_ready, namespace)",
        "model": 'label_values(marina_ready{namespace="$namespace"}, model)',
    }
    return [source] + [
        {
            "name": name,
            "type": "query",
            "label": name,
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "current": {"text": chosen[name], "value": chosen[name], "selected": True},
            "refresh": 2,
            "sort": 1,
            "multi": False,
            "includeAll": False,
        }
        for name, query in definitions.items()
    ]
