"""Everything that Prometheus and Grafana get: expressions, rules, alerts, the dashboard, the adapter's values, and the
contract that says which series these may use."""

from marina.k8s.monitoring.adapter import (
    EXPECTED_METRIC,
    METRICS,
    RUNNING_METRIC,
    adapter_rules,
    adapter_values,
    external_rules,
)
from marina.k8s.monitoring.catalogue import TARGET_LABELS, find_series, page_series
from marina.k8s.monitoring.contract import UsedSeries, all_expressions, metric_contract, misuses
from marina.k8s.monitoring.dashboard import dashboard_identity, render_dashboard
from marina.k8s.monitoring.expressions import (
    EXPECTED,
    POD_NAME,
    SCRAPES_PER_RATE,
    SERVER_CONTAINER,
    expected_query,
    forecast_lead_s,
    keda_query,
    running_query,
)
from marina.k8s.monitoring.promql import Matcher, selectors
from marina.k8s.monitoring.rules import alert_rules, recording_rules
from marina.k8s.monitoring.workloads import WORKLOADS, Engine, Workload

__all__ = [
    "EXPECTED",
    "EXPECTED_METRIC",
    "METRICS",
    "POD_NAME",
    "RUNNING_METRIC",
    "SCRAPES_PER_RATE",
    "SERVER_CONTAINER",
    "TARGET_LABELS",
    "WORKLOADS",
    "Engine",
    "Matcher",
    "UsedSeries",
    "Workload",
    "adapter_rules",
    "adapter_values",
    "alert_rules",
    "all_expressions",
    "dashboard_identity",
    "expected_query",
    "external_rules",
    "find_series",
    "forecast_lead_s",
    "keda_query",
    "metric_contract",
    "misuses",
    "page_series",
    "recording_rules",
    "render_dashboard",
    "running_query",
    "selectors",
]
