"""What Prometheus and Grafana are given: series, expressions, rules, alerts, dashboard, the adapter's values."""

from k8s.monitoring.adapter import METRICS, adapter_rules, adapter_values
from k8s.monitoring.catalogue import CATALOGUE, TARGET_LABELS, find_series, series_of
from k8s.monitoring.contract import Need, all_expressions, metric_contract, misuses
from k8s.monitoring.dashboard import dashboard_identity, render_dashboard
from k8s.monitoring.expressions import SERVER_CONTAINER, keda_query
from k8s.monitoring.promql import Matcher, Selector, selectors
from k8s.monitoring.rules import alert_rules, recording_rules

__all__ = [
    "CATALOGUE",
    "METRICS",
    "SERVER_CONTAINER",
    "TARGET_LABELS",
    "Matcher",
    "Need",
    "Selector",
    "adapter_rules",
    "adapter_values",
    "alert_rules",
    "all_expressions",
    "dashboard_identity",
    "find_series",
    "keda_query",
    "metric_contract",
    "misuses",
    "recording_rules",
    "render_dashboard",
    "selectors",
    "series_of",
]
