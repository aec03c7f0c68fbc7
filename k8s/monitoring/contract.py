"""The metric contract: every series that a rule, a panel or the adapter names must exist, with that type and labels.

What is named is read from the expressions themselves; what exists is declared in `series`, and `check_live` holds the
declaration against the page of a running server.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from config.errors import InputError, listed, nearest
from config.spec import Spec
from k8s.monitoring.adapter import adapter_rules
from k8s.monitoring.catalogue import CATALOGUE, TARGET_LABELS, Series, find_series, series_of
from k8s.monitoring.dashboard import dashboard
from k8s.monitoring.expressions import keda_query, rate_window
from k8s.monitoring.promql import Matcher, Selector, selectors
from k8s.monitoring.rules import alert_rules, recording_rules
from k8s.verify.rule import Finding

_RATES = {"increase", "irate", "rate", "resets"}
# Labels whose values are fixed before anything happens; a code, for one, appears with its first answer.
_KNOWN = ("le", "model", "model_name")
_HINTS = {
    "metric-collision": "rename the label where the metric is made",
    "metric-edge": "serve with the same release of Marina as the rules are made with",
    "metric-label": "serve with the same release of Marina as the rules are made with",
    "metric-missing": "send an inference first; then serve with the same release as the rules are made with",
    "metric-model": "give the address of a server of this spec",
    "metric-type": "serve with the same release of Marina as the rules are made with",
}
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Expression:
    """One expression, as Prometheus gets it, and where it stands."""

    place: str
    text: str


@dataclass(frozen=True)
class Need:
    """One series that the kit counts on: its declaration, the labels that are used, and by what."""

    series: Series
    labels: frozenset[str]
    places: tuple[str, ...]


def expressions(spec: Spec) -> list[Expression]:
    """Every expression of the rules, the dashboard, the adapter and KEDA, their templates filled in."""
    found = []
    for group in recording_rules(spec) + alert_rules(spec):
        for rule in group["rules"]:
            name = f"record {rule['record']}" if "record" in rule else f"alert {rule['alert']}"
            found.append(Expression(name, rule["expr"]))
    page = dashboard(spec)
    for panel in page["panels"]:
        found += [Expression(f"panel {panel['title']}", _filled(spec, one["expr"])) for one in panel.get("targets", [])]
    found += [
        Expression("annotation " + one["name"], _filled(spec, one["expr"])) for one in page["annotations"]["list"]
    ]
    for variable in page["templating"]["list"]:
        if asked := re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", "")):
            text = f"count by ({asked[2]}) ({_filled(spec, asked[1])})"
            found.append(Expression(f"variable {variable['name']}", text))
    for rule in adapter_rules(spec):
        place = f"adapter {rule['name']['as']}"
        found += [
            Expression(place, rule["seriesQuery"]),
            Expression(place, adapter_query(rule, spec.kubernetes.namespace)),
        ]
    return [*found, Expression("keda", keda_query(spec))]


def adapter_query(rule: dict[str, Any], namespace: str, pods: str = ".*") -> str:
    """What prometheus-adapter asks Prometheus when an autoscaler asks it about some pods."""
    labels = {what["resource"]: label for label, what in rule["resources"]["overrides"].items()}
    series = rule["seriesQuery"].partition("{")[0]
    matchers = f'{labels["namespace"]}="{namespace}",{labels["pod"]}=~"{pods}"'
    text: str = rule["metricsQuery"]
    for name, value in (("Series", series), ("LabelMatchers", matchers), ("GroupBy", labels["pod"])):
        text = text.replace(f"<<.{name}>>", value)
    return text


def contract(spec: Spec) -> list[Need]:
    """Every series that is named, by name; InputError when one is unknown or used against its nature."""
    recorded = {rule["record"] for group in recording_rules(spec) for rule in group["rules"]}
    labels: dict[str, set[str]] = {}
    places: dict[str, dict[str, None]] = {}
    for expression in expressions(spec):
        if faults := [text for one in selectors(expression.text) for text in misuses(one, recorded)]:
            raise InputError(f"{expression.place}: {'; '.join(faults)}")
        for one in selectors(expression.text):
            if series := find_series(one.name):
                labels.setdefault(series.name, set()).update(one.labels)
                places.setdefault(series.name, {})[expression.place] = None
    return [Need(CATALOGUE[name], frozenset(labels[name]), tuple(places[name])) for name in sorted(labels)]


def misuses(selector: Selector, recorded: set[str]) -> Iterator[str]:
    """What is wrong with how an expression uses a series: an unknown name or label, a rate of a gauge, a counter as it
    is."""
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
    counts, rated = series.kind in ("counter", "histogram"), selector.function in _RATES
    if counts and not rated and selector.function != "absent" and not _discovers(selector):
        yield f"`{selector.name}`: a counter only rises, its rate was meant"
    if rated and not counts:
        yield f"`{selector.name}`: {selector.function} of a gauge"


def _discovers(selector: Selector) -> bool:
    """Whether this only asks which series there are, as the adapter does."""
    return bool(selector.matchers) and all((one.op, one.value) in (("!=", ""), ("=", "")) for one in selector.matchers)


def check_live(spec: Spec, url: str) -> list[Finding]:
    """Findings about the page of a running server: what the rules and panels of this spec name and it does not have.
    `url` is the supervisor's, with or without `/metrics`."""
    where = url.rstrip("/").removesuffix("/metrics") + "/metrics"
    return check_page(spec, _fetched(where), where)


def check_page(spec: Spec, text: str, where: str) -> list[Finding]:
    """The same about the text of a page."""
    try:
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except ValueError as err:
        raise InputError(
            f"{where}: not a page of metrics: {err}", hint="give the supervisor's address, port 8090"
        ) from err
    found = [text for one in contract(spec) if one.series in series_of(spec) for text in _against(one, families)]
    found += list(_unmatched(spec, families)) if not found else []
    found += list(_colliding(families))
    return [Finding(where, 0, name, "", rule, "error", text, _HINTS[rule]) for name, rule, text in found]


Fault = tuple[str, str, str]


def _against(need: Need, families: dict[str, Metric]) -> Iterator[Fault]:
    name = need.series.name
    family = families.get(name.removesuffix("_total"))
    if family is None or not family.samples:
        if not need.series.late:
            yield name, "metric-missing", f"not on the page, but named by {_some(need.places)}"
        return
    if family.type != need.series.kind:
        yield name, "metric-type", f"got `{family.type}`, allowed: `{need.series.kind}`"
    for label in sorted(need.labels - TARGET_LABELS - {"le"}):
        if any(label not in sample.labels for sample in family.samples):
            yield name, "metric-label", f"has no label `{label}`, but {_some(need.places)} names it"


def _unmatched(spec: Spec, families: dict[str, Metric]) -> Iterator[Fault]:
    """Selectors that no sample of the page fits: another model's page, an edge that the histogram lacks."""
    samples: dict[str, list[dict[str, str]]] = {}
    for family in families.values():
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
    told = set()
    for expression in expressions(spec):
        for selector in selectors(expression.text):
            wanted = tuple(one for one in selector.matchers if one.label in _KNOWN)
            there = samples.get(selector.name)
            if not there or (selector.name, wanted) in told or _any_fits(wanted, there):
                continue
            told.add((selector.name, wanted))
            shown = ", ".join(f"{one.label}{one.op}`{one.value}`" for one in wanted)
            rule = (
                "metric-model" if not _any_fits([one for one in wanted if one.label != "le"], there) else "metric-edge"
            )
            yield selector.name, rule, f"no sample with {shown}, but `{expression.place}` asks for it"


def _any_fits(wanted: Iterable[Matcher], samples: list[dict[str, str]]) -> bool:
    return any(all(_fits(one, labels) for one in wanted) for labels in samples)


def _fits(matcher: Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.label, "")
    return bool(re.fullmatch(matcher.value, value)) if matcher.op == "=~" else value == matcher.value


def _colliding(families: dict[str, Metric]) -> Iterator[Fault]:
    for family in families.values():
        for label in sorted({label for sample in family.samples for label in sample.labels} & TARGET_LABELS):
            yield (
                family.name,
                "metric-collision",
                f"label `{label}` is one that a scrape adds, Prometheus would rename it",
            )


def _some(places: tuple[str, ...]) -> str:
    shown = listed(places[:2])
    return shown if len(places) < 3 else f"{shown} and {len(places) - 2} more"


def _fetched(where: str) -> str:
    try:
        with urllib.request.urlopen(where, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, ValueError) as err:
        raise InputError(f"{where}: no page of metrics there: {err}", hint="marina serve SPEC") from err


def _filled(spec: Spec, expression: str) -> str:
    values = {"__rate_interval": rate_window(spec), "namespace": spec.kubernetes.namespace, "model": spec.name}
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression
