"""Checks a running server against the metric contract: which metrics the spec's rules, panels and adapter use, but the
server's metrics page does not have."""

import http.client
import re
import urllib.request
from collections.abc import Collection, Iterator

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from marina.config.errors import InputError, listed, reason_of
from marina.config.spec import Spec
from marina.k8s.monitoring import (
    TARGET_LABELS,
    Matcher,
    UsedSeries,
    all_expressions,
    metric_contract,
    page_series,
    selectors,
)
from marina.k8s.verify.rule import Violation

# Labels whose values are known before the first request; a status code, for one, appears with its first answer.
_FIXED_LABELS = ("le", "model", "model_name")
_SAME_VERSION = "serve with the version of Marina that made the rules"
_HINTS = {
    "metric-collision": "rename the label where the metric is made",
    "metric-edge": _SAME_VERSION,
    "metric-label": _SAME_VERSION,
    "metric-missing": f"send an inference first; then {_SAME_VERSION}",
    "metric-model": "give the address of a server of this spec",
    "metric-type": _SAME_VERSION,
}
_TIMEOUT_S = 10.0

Fault = tuple[str, str, str]
"""A problem of a page: its metric, the id of the check that found it, and the sentence."""


def check_live(spec: Spec, url: str) -> list[Violation]:
    """The findings about a running server of this spec; `url` is its supervisor's, with or without `/metrics`."""
    where = url.rstrip("/").removesuffix("/metrics") + "/metrics"
    return check_page(spec, _read_page(where), where)


def check_page(spec: Spec, text: str, where: str) -> list[Violation]:
    """The findings about the text of a metrics page, which was read from `where`."""
    try:
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except ValueError as err:
        text = f"{where}: not a metrics page: {err}"
        raise InputError(text, hint="give the supervisor's address, port 8090") from err
    exported = page_series(spec)
    faults = [fault for need in metric_contract(spec) if need.series in exported for fault in _declared(need, families)]
    if not faults:
        faults += _unmatched(spec, families)
    faults += _colliding(families)
    return [Violation(where, 0, metric, "", rule, "error", text, _HINTS[rule]) for metric, rule, text in faults]


def _declared(need: UsedSeries, families: dict[str, Metric]) -> Iterator[Fault]:
    """Checks that a metric is on the page, with its declared type and the labels that are used."""
    name = need.series.name
    family = families.get(name.removesuffix("_total"))
    if family is None or not family.samples:
        yield (name, "metric-missing", f"not on the page, but used by {_some(need.places)}")
        return
    if family.type != need.series.kind:
        yield (name, "metric-type", f"got `{family.type}`, allowed: `{need.series.kind}`")
    for label in sorted(need.labels - TARGET_LABELS - {"le"}):
        if any(label not in sample.labels for sample in family.samples):
            yield (name, "metric-label", f"has no label `{label}`, but it is used by {_some(need.places)}")


def _unmatched(spec: Spec, families: dict[str, Metric]) -> Iterator[Fault]:
    """Selectors that match no sample on the page: it is another model's, or the histogram lacks a bucket edge."""
    exported = [sample for family in families.values() for sample in family.samples]
    reported = set()
    for expression in all_expressions(spec):
        for selector in selectors(expression.text):
            wanted = tuple(matcher for matcher in selector.matchers if matcher.label in _FIXED_LABELS)
            samples = [sample.labels for sample in exported if sample.name == selector.name]
            if not samples or (selector.name, wanted) in reported or _any_fits(wanted, samples):
                continue
            reported.add((selector.name, wanted))
            shown = ", ".join(f"{matcher.label}{matcher.op}`{matcher.value}`" for matcher in wanted)
            own_model = _any_fits([matcher for matcher in wanted if matcher.label != "le"], samples)
            rule = "metric-edge" if own_model else "metric-model"
            yield (selector.name, rule, f"no sample with {shown}, which `{expression.place}` uses")


def _any_fits(wanted: Collection[Matcher], samples: list[dict[str, str]]) -> bool:
    return any(all(_fits(matcher, labels.get(matcher.label, "")) for matcher in wanted) for labels in samples)


def _fits(matcher: Matcher, value: str) -> bool:
    return bool(re.fullmatch(matcher.value, value)) if matcher.op == "=~" else value == matcher.value


def _colliding(families: dict[str, Metric]) -> Iterator[Fault]:
    for family in families.values():
        for label in sorted({label for sample in family.samples for label in sample.labels} & TARGET_LABELS):
            text = f"has the label `{label}`, which Prometheus adds itself; it would rename this one"
            yield (family.name, "metric-collision", text)


def _some(places: tuple[str, ...]) -> str:
    shown = listed(places[:2])
    return shown if len(places) < 3 else f"{shown} and {len(places) - 2} more"


def _read_page(where: str) -> str:
    try:
        with urllib.request.urlopen(where, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(), "utf-8")
    except (OSError, ValueError, http.client.HTTPException) as err:
        hint = "marina serve SPEC; its pages are ten ports above the inference port"
        raise InputError(f"{where}: no metrics page there: {reason_of(err)}", hint=hint) from err
