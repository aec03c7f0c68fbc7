"""The metric contract: every series that a rule, a panel or the adapter uses must exist, with the right type and
labels.

The series in use are read from the expressions themselves; those that exist are declared in `catalogue`.
`k8s/verify/live.py` compares the declaration with the page of a running server."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marina.config.errors import InputError, nearest
from marina.config.spec import Spec
from marina.k8s.monitoring.adapter import adapter_rules, external_rules
from marina.k8s.monitoring.catalogue import CATALOGUE, Series, find_series
from marina.k8s.monitoring.dashboard import render_dashboard
from marina.k8s.monitoring.expressions import expected_query, keda_query, rate_window, running_query
from marina.k8s.monitoring.promql import Selector, selectors
from marina.k8s.monitoring.rules import alert_rules, recording_rules
from marina.k8s.monitoring.workloads import DEPLOYMENT, Workload

_RATE_FUNCTIONS = {"increase", "irate", "rate", "resets"}


@dataclass(frozen=True)
class Expression:
    """One expression as Prometheus gets it; `place` says which rule, panel or query it is from."""

    place: str
    text: str


@dataclass(frozen=True)
class UsedSeries:
    """One series that Marina uses: its declaration, the labels in use, and the expressions that use it."""

    series: Series
    labels: frozenset[str]
    places: tuple[str, ...]


def all_expressions(spec: Spec, workload: Workload = DEPLOYMENT) -> list[Expression]:
    """Every expression in the rules, the dashboard, the adapter and KEDA, with the templates filled in."""
    expressions = []
    for group in recording_rules(spec) + alert_rules(spec, workload):
        for rule in group["rules"]:
            name = f"record {rule['record']}" if "record" in rule else f"alert {rule['alert']}"
            expressions.append(Expression(name, rule["expr"]))
    page = render_dashboard(spec, workload=workload)
    for panel in page["panels"]:
        expressions += [
            Expression(f"panel {panel['title']}", _filled(spec, target["expr"])) for target in panel.get("targets", [])
        ]
    expressions += [
        Expression("annotation " + annotation["name"], _filled(spec, annotation["expr"]))
        for annotation in page["annotations"]["list"]
    ]
    for variable in page["templating"]["list"]:
        if match := re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", "")):
            text = f"count by ({match[2]}) ({_filled(spec, match[1])})"
            expressions.append(Expression(f"variable {variable['name']}", text))
    for rule in [*adapter_rules(spec), *external_rules(spec)]:
        place = f"adapter {rule['name']['as']}"
        expressions += [
            Expression(place, rule["seriesQuery"]),
            Expression(place, adapter_query(rule, spec.kubernetes.namespace)),
        ]
    expressions.append(Expression("keda", keda_query(spec)))
    if spec.scaling.metric == "waiting":
        expressions.append(Expression("keda running", running_query(spec)))
    if spec.scaling.forecast == "weekly":
        expressions.append(Expression("keda forecast", expected_query(spec)))
    return expressions


def adapter_query(rule: dict[str, Any], namespace: str, pods: str = ".*") -> str:
    """The query that prometheus-adapter sends to Prometheus when an autoscaler asks for the metric of some pods."""
    labels = {override["resource"]: label for label, override in rule["resources"]["overrides"].items()}
    series = rule["seriesQuery"].partition("{")[0]
    matchers = f'{labels["namespace"]}="{namespace}"' + (f',{labels["pod"]}=~"{pods}"' if "pod" in labels else "")
    text: str = rule["metricsQuery"]
    for name, value in (("Series", series), ("LabelMatchers", matchers), ("GroupBy", labels.get("pod", ""))):
        text = text.replace(f"<<.{name}>>", value)
    return text


def metric_contract(spec: Spec, workload: Workload = DEPLOYMENT) -> list[UsedSeries]:
    """Every series in use, sorted by name. Raises InputError if one is unknown or used in a wrong way."""
    recorded = {rule["record"] for group in recording_rules(spec) for rule in group["rules"]}
    labels: dict[str, set[str]] = {}
    places: dict[str, dict[str, None]] = {}
    for expression in all_expressions(spec, workload):
        if faults := [text for selector in selectors(expression.text) for text in misuses(selector, recorded)]:
            raise InputError(f"{expression.place}: {'; '.join(faults)}")
        for selector in selectors(expression.text):
            if series := find_series(selector.name):
                labels.setdefault(series.name, set()).update(selector.labels)
                places.setdefault(series.name, {})[expression.place] = None
    return [UsedSeries(CATALOGUE[name], frozenset(labels[name]), tuple(places[name])) for name in sorted(labels)]


def misuses(selector: Selector, recorded: set[str]) -> Iterator[str]:
    """The mistakes in how an expression uses a series: an unknown name or label, the rate of a gauge, or a counter
    without a rate."""
    if selector.name in recorded:
        return
    series = find_series(selector.name)
    if series is None:
        meant = nearest(selector.name, [*CATALOGUE, *recorded])
        yield f"`{selector.name}`: unknown metric" + (f", did you mean `{meant}`?" if meant else "")
        return
    for label in sorted(selector.labels):
        if not series.has(label):
            yield f"`{selector.name}`: has no label `{label}`"
    counts, rated = series.kind in ("counter", "histogram"), selector.function in _RATE_FUNCTIONS
    if counts and not rated and selector.function != "absent" and not _discovers(selector):
        yield f"`{selector.name}`: a counter only rises: use its rate"
    if rated and not counts:
        yield f"`{selector.name}`: {selector.function} of a gauge"


def _discovers(selector: Selector) -> bool:
    """Whether the selector only asks which series exist, as the adapter's does."""
    return bool(selector.matchers) and all(
        (matcher.op, matcher.value) in (("!=", ""), ("=", "")) for matcher in selector.matchers
    )


def _filled(spec: Spec, expression: str) -> str:
    values = {"__rate_interval": rate_window(spec), "namespace": spec.kubernetes.namespace, "model": spec.name}
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression
