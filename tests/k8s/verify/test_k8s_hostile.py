"""Manifests that are meant to stop the check: texts that nest or grow, numbers that nothing can store."""

from itertools import pairwise
from pathlib import Path

import pytest
from test_k8s_strangers import BUDGET, MONITOR, SCALER, deployment, errors

TEN = "[" + ", ".join(["*%s"] * 10) + "]"
GROWS = "\n".join(f"    {name}: &{name} " + TEN % ((before,) * 10) for before, name in pairwise("abcdefghij"))
NESTED_TEXTS = {
    "settings that grow": "metadata: {name: a}\ndata:\n  a: |\n    a: &a x\n"
    + GROWS
    + "\n    rules: [{metricsQuery: *j}]",
    "settings": "metadata: {name: a}\ndata:\n  a: |\n    metricsQuery: " + "- " * 3000,
    "a dashboard": "metadata: {name: a, labels: {grafana_dashboard: '1'}}\ndata:\n  a.json: |\n    " + '{"a":' * 3000,
}
NESTED_EXPRESSIONS = ["(" * 20_000 + "x" + ")" * 20_000, " or ".join(["x"] * 3000), "-" * 20_000 + "x"]


@pytest.mark.parametrize("name", NESTED_TEXTS)
def test_a_text_in_a_config_map_cannot_stop_the_check(name: str, tmp_path: Path) -> None:
    defects = errors(tmp_path, f"apiVersion: v1\nkind: ConfigMap\n{NESTED_TEXTS[name]}\n---", SCALER % "queue")
    assert {error.partition(":")[0] for error in defects} <= {"dashboard-invalid"}


@pytest.mark.parametrize("expression", NESTED_EXPRESSIONS, ids=["brackets", "terms", "signs"])
def test_an_expression_cannot_stop_the_check(expression: str, tmp_path: Path) -> None:
    rules = f"spec: {{groups: [{{name: a, rules: [{{record: a, expr: '{expression}'}}]}}]}}"
    text = f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {{name: a}}\n{rules}"
    assert errors(tmp_path, text) == []


HUGE, DIGITS = "1" + "0" * 400, "9" * 5000
NUMBERS = [
    deployment() + BUDGET.replace("minAvailable: 2", f"maxUnavailable: {DIGITS}%"),
    deployment(lifecycle=f"{{preStop: {{exec: {{command: [sh, -c, sleep {DIGITS}]}}}}}}"),
    deployment() + (MONITOR % ("PodMonitor", "podMetricsEndpoints")).replace("30s", f"1s, scrapeTimeout: {DIGITS}s"),
    deployment(lifecycle=f"{{preStop: {{sleep: {{seconds: {HUGE}}}}}}}"),
    deployment(resources=f"{{requests: {{memory: 1}}, limits: {{memory: {HUGE}}}}}"),
]


@pytest.mark.parametrize("text", NUMBERS, ids=["percent", "command", "duration", "seconds", "bytes"])
def test_a_number_that_nothing_can_store_cannot_stop_the_check(text: str, tmp_path: Path) -> None:
    assert errors(tmp_path, text) == []
