"""Rules about metrics: PromQL expressions, the series that they name, and the metrics that autoscalers use."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from marina.config.errors import InputError, SpecError, listed, nearest
from marina.config.yaml_lines import read_documents
from marina.k8s.monitoring import (
    CATALOGUE,
    Matcher,
    Selector,
    adapter_rules,
    external_rules,
    find_series,
    misuses,
    selectors,
)
from marina.k8s.verify.application import Application
from marina.k8s.verify.located import Place, is_adapter_settings, settings_rules
from marina.k8s.verify.rule import Level, Remark, Scope, Topic
from marina.k8s.verify.rules.scaling import metric_sources

TOPIC = Topic("Metrics")

# Counters by the suffix of their names, and those of TorchServe that have none.
_COUNTER = re.compile(r"[\w:]*(_total|_count|_sum|_bucket)|ts_(inference|queue)_latency_microseconds|Requests[245]XX")
_RATED = re.compile(r"\b(increase|irate|rate)\b")
_PER_TIME = {"changes", "delta", "deriv", "idelta", "increase", "irate", "rate", "resets"}
# What only some Prometheus servers read, and our parser does not: computed durations and extended ranges need a feature
# flag, `holt_winters` a version before 3.
_ONLY_SOME = re.compile(
    r"\[[^][{}]*[\w)]\s*[-+*/%^(][^][{}]*\]|\boffset\s*-?\s*\(|\]\s*(anchored|smoothed)\b|\bholt_winters\b",
    re.IGNORECASE,
)
# The metric's name in an adapter rule's `seriesQuery`: `name{…}` or `{__name__=~"^name"}`.
_SERIES = re.compile(r"(?<!__)\b(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_OURS = ("inference_", "marina_", "ts_")


def _expressions(application: Application) -> Iterator[tuple[Place, str]]:
    """Every PromQL expression in the objects: its place, and its text as Prometheus gets it."""
    for document in application.of("PrometheusRule"):
        yield from ((node, str(node.value)) for node in document.root.all("spec.groups[].rules[].expr"))
    for scaler in application.of("ScaledObject"):
        for trigger in scaler.root.at("spec", "triggers").items():
            if trigger.at("type").text == "prometheus" and trigger.at("metadata", "query").given:
                yield trigger.at("metadata", "query"), trigger.at("metadata", "query").text
    for settings_rule in _settings_rules(application):
        series = _SERIES.search(settings_rule.at("seriesQuery").text)
        query = settings_rule.at("metricsQuery")
        filled = query.text.replace("<<.Series>>", series[0] if series else "up").replace("<<.GroupBy>>", "pod")
        if query.text:
            yield query, re.sub(r"<<.*?>>", 'pod!=""', filled)


def _settings_rules(application: Application) -> list[Place]:
    settings = filter(is_adapter_settings, application.documents)
    return [rule for document in settings for rule in settings_rules(document)]


def _read(text: str) -> tuple[Selector, ...]:
    try:
        return selectors(text)
    except InputError:
        return ()


@TOPIC.rule(
    "expression-invalid",
    "error",
    what="An expression is not valid PromQL.",
    why="To the API server it is only text. Prometheus refuses the whole file of rules, and KEDA never gets a value.",
    fix="`promtool check rules FILE` points at the place",
)
def _expression(application: Application, _: Scope) -> Iterator[Remark]:
    for node, text in _expressions(application):
        try:
            selectors(text)
        except InputError as err:
            if _ONLY_SOME.search(text):
                remark = f"`{text}`: only some versions of Prometheus read it, or only with a feature flag"
                yield Remark(node, remark, "`promtool check rules FILE`, in the version of your Prometheus", "warning")
            else:
                yield Remark(node, str(err).splitlines()[0])


@TOPIC.rule(
    "metric-unknown",
    "error",
    what="An expression names a metric that the server does not export.",
    why="It is valid PromQL, but the alert never fires, which looks as if all were well.",
    fix="`curl POD:8090/metrics` lists the names; `marina verify SPEC --live URL` compares them",
)
def _unknown(application: Application, scope: Scope) -> Iterator[Remark]:
    recorded = _recorded(application)
    served = bool(application.made_by_marina)
    for node, text in _expressions(application):
        for name in dict.fromkeys(selector.name for selector in _read(text)):
            judged = scope.plan is not None or (served and name.startswith(_OURS))
            if judged and name and name not in recorded and find_series(name) is None:
                near = nearest(name, [*CATALOGUE, *recorded])
                yield Remark(node, f"`{name}`" + (f", did you mean `{near}`?" if near else " is not known"))


@TOPIC.rule(
    "metric-misused",
    "error",
    what="A rule misuses a metric: a counter without a rate, a gauge with one, or a label that it does not have.",
    why="It is valid PromQL, but the expression is always true, always false, or empty.",
    fix="`rate(COUNTER[5m])`; a gauge without `rate`; labels that the metrics page shows",
)
def _misused(application: Application, scope: Scope) -> Iterator[Remark]:
    judged = scope.plan is not None or bool(application.made_by_marina)
    for node, text in _expressions(application):
        for selector in _read(text) if judged and node.document.kind == "PrometheusRule" else []:
            if find_series(selector.name) is not None:
                yield from (Remark(node, misuse) for misuse in misuses(selector, _recorded(application)))


@TOPIC.rule(
    "metric-elsewhere",
    "error",
    what="An expression asks for metrics of another namespace or Deployment than the server's.",
    why="A kustomization's `namespace` or `namePrefix` changes the objects and no expression: no alert fires, and KEDA "
    "never adds a pod.",
    fix="set `kubernetes.namespace` and `name` in the spec, and write the manifests again",
)
def _elsewhere(application: Application, _: Scope) -> Iterator[Remark]:
    servers = [workload.document for workload in application.made_by_marina]
    known = {"namespace": {server.namespace for server in servers}, "deployment": {server.name for server in servers}}
    reported: set[tuple[int, Matcher]] = set()
    for node, text in _expressions(application):
        # Rules of others may well be about several namespaces.
        ours = node.document.root.at("metadata", "labels", "app.kubernetes.io/part-of").value == "marina"
        for selector in _read(text) if servers and ours else []:
            for matcher in selector.matchers if find_series(selector.name) else ():
                names, where = known.get(matcher.label, {""}), (id(node.document), matcher)
                # An object without a namespace goes to whichever kubectl uses.
                if matcher.op == "=" and not names & {"", matcher.value} and where not in reported:
                    reported.add(where)
                    yield Remark(node, f'asks for `{matcher.label}="{matcher.value}"`, the server is {listed(names)}')


def _recorded(application: Application) -> set[str]:
    return {
        name.text
        for document in application.of("PrometheusRule")
        for name in document.root.all("spec.groups[].rules[].record")
    }


@TOPIC.rule(
    "metric-counter",
    "error",
    what="An autoscaler compares a counter, which only grows, with a target.",
    why="Once over the target it stays there: the service scales to its largest size and never back.",
    fix="scale by `rate(COUNTER[1m])`: a rule of prometheus-adapter, or the query of a KEDA trigger",
)
def _counter(application: Application, _: Scope) -> Iterator[Remark]:
    rated = {name for name, query in _made(application) if _RATED.search(query)}
    for scaler in application.of("HorizontalPodAutoscaler"):
        for _kind, metric in metric_sources(scaler.root.at("spec")):
            name = metric.at("metric", "name")
            if _COUNTER.fullmatch(name.text) and name.text not in rated:
                yield Remark(name, f"got `{name.text}`, a counter", level=_certainty(name.text))
    for node, text in _expressions(application):
        for selector in _read(text) if node.document.kind != "PrometheusRule" else []:
            if _COUNTER.fullmatch(selector.name) and selector.function not in _PER_TIME:
                text = f"`{selector.name}` is a counter, and it is used without a rate"
                yield Remark(node, text, level=_certainty(selector.name))


def _certainty(name: str) -> Level | None:
    """A gauge may have a name in `_count` or `_sum`, too, such as one for the messages in queues."""
    return "warning" if name.endswith(("_count", "_sum")) and find_series(name) is None else None


@TOPIC.rule(
    "metric-adapter",
    "error",
    what="No rule of prometheus-adapter makes the metric that an autoscaler uses.",
    why="The API server accepts any name. The metric has no value, the autoscaler reports `FailedGetPodsMetric`, and "
    "nothing scales.",
    fix="add the rule to the adapter's values, or use a name that one of its rules makes",
)
def _adapter(application: Application, scope: Scope) -> Iterator[Remark]:
    made = {name for name, _ in _made(application)}
    if "" in made:
        return
    if scope.plan:
        spec = scope.plan.spec
        made |= {str(rule["name"]["as"]) for rule in [*adapter_rules(spec), *external_rules(spec)]}
    for scaler in application.of("HorizontalPodAutoscaler") if made else []:
        for kind, metric in metric_sources(scaler.root.at("spec")):
            name = metric.at("metric", "name")
            # A counter has a rule of its own.
            wrong = name.text and name.text not in made and not _COUNTER.fullmatch(name.text)
            if kind in ("External", "Object", "Pods") and wrong:
                near = nearest(name.text, made)
                hint = near and f"name: {near}"
                # Another server, such as KEDA's or a cloud's, may serve the external metrics.
                level: Level | None = "warning" if kind == "External" and not scope.plan else None
                yield Remark(name, f"got `{name.text}`, the adapter makes {listed(made)}", hint, level)


def _made(application: Application) -> list[tuple[str, str]]:
    """The metrics that prometheus-adapter's rules make, from its values or its ConfigMap, each with its query; the name
    is empty if it is computed."""
    rules = [rule.value for rule in _settings_rules(application)]
    if any(
        item.root.at("rules", "default").value is not False
        for item in filter(is_adapter_settings, application.documents)
    ):
        # The adapter's own rules, which compute the names.
        rules.append({})
    for document in application.of("ConfigMap"):
        for text in document.root.at("data").texts.values():
            if "metricsQuery" in text:
                with suppress(SpecError):
                    for settings, _lines, _problems in read_documents(text, document.file):
                        for name in ("rules", "externalRules"):
                            added = settings.get(name) if isinstance(settings, dict) else None
                            rules += added if isinstance(added, list) else []
    return [_name_and_query(rule) for rule in rules]


def _name_and_query(rule: Any) -> tuple[str, str]:
    table = rule if isinstance(rule, dict) else {}
    named = table.get("name")
    name = named.get("as") if isinstance(named, dict) else None
    return name if isinstance(name, str) and "$" not in name else "", str(table.get("metricsQuery"))


@TOPIC.rule(
    "keda-trigger",
    "error",
    what="A Prometheus trigger of KEDA has no address, query or threshold.",
    why="The schema does not require them. KEDA refuses the ScaledObject and creates no autoscaler.",
    fix="metadata: {serverAddress: http://…, query: …, threshold: '…'}",
)
def _trigger(application: Application, _: Scope) -> Iterator[Remark]:
    for scaler in application.of("ScaledObject"):
        for trigger in scaler.root.at("spec", "triggers").items():
            needed = ("serverAddress", "query", "threshold") if trigger.at("type").text == "prometheus" else ()
            missing = [name for name in needed if not trigger.at("metadata", name).given]
            if missing:
                yield Remark(trigger.at("metadata"), f"{listed(missing)} missing")
