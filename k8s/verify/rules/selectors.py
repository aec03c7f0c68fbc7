"""Rules about who selects whom: labels, Services and their ports, routes."""

from __future__ import annotations

from collections.abc import Iterator

from config.errors import listed, nearest
from k8s.verify.application import SCALABLE, Application, matches
from k8s.verify.located import LocatedDocument, Place
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Selectors and Services")

# Labels that another release changes.
_CHANGING = {
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "chart",
    "helm.sh/chart",
    "heritage",
    "version",
}


@TOPIC.rule(
    "selector-labels",
    "error",
    what="A workload's selector does not take the labels of its own pods.",
    why="The API server refuses it.",
    fix="give `template.metadata.labels` every label of `selector.matchLabels`",
)
def _selector(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        selector = workload.document.root.at("spec", "selector")
        if workload.document.kind in SCALABLE | {"DaemonSet"} and not matches(selector, workload.labels):
            wanted = selector.at("matchLabels").texts
            differing = [f"{key}={value}" for key, value in wanted.items() if workload.labels.get(key) != value]
            yield Remark(selector, f"pods do not have {listed(differing or ['what matchExpressions ask for'])}")


@TOPIC.rule(
    "selector-changes",
    "warning",
    what="A selector asks for a label that the next release changes.",
    why="A Deployment's selector cannot be changed, and a Service drops the old pods before the new ones are there.",
    fix="select on name, instance and component only",
)
def _changing(application: Application, _: Scope) -> Iterator[Remark]:
    for document in application.documents:
        for path in ("spec.selector.matchLabels", "spec.selector", "spec.podSelector.matchLabels"):
            for selector in document.root.all(path):
                for key in sorted(selector.texts.keys() & _CHANGING):
                    yield Remark(selector.at(key), f"selects on `{key}`", f"delete `{key}` from the selector")


@TOPIC.rule(
    "service-selects-nothing",
    "error",
    what="No pod has the labels that a Service selects.",
    why="The Service has no endpoints: every request is refused.",
    fix="write labels of the pods, `spec.template.metadata.labels`, in the Service's `spec.selector`",
)
def _service(application: Application, _: Scope) -> Iterator[Remark]:
    for service in application.of("Service"):
        selector = service.root.at("spec", "selector")
        # Pods of a Job find each other by one, too.
        labelled = [
            workload.labels for workload in application.workloads if application.together(workload.document, service)
        ]
        if selector.texts and not any(selector.texts.items() <= labels.items() for labels in labelled):
            pairs = [f"{key}={value}" for key, value in selector.texts.items()]
            yield Remark(selector, f"no pod here has {listed(pairs)}", _nearest_labels(application, selector))


def _nearest_labels(application: Application, selector: Place) -> str | None:
    """The labels of the pods of which the most terms hold."""
    wanted = selector.texts.items()
    best = max(
        (workload.labels for workload in application.serving),
        key=lambda labels: len(wanted & labels.items()),
        default=None,
    )
    shown = {key: best[key] for key, _ in wanted if key in best} if best else None
    return f"the pods have {listed(f'{key}: {value}' for key, value in shown.items())}" if shown else None


@TOPIC.rule(
    "service-port",
    "error",
    what="A Service sends to a port that its pods do not declare.",
    why="A name that nobody declares is no endpoint; a number that nobody declares is most likely a mistake.",
    fix="write the name of a container's port as `targetPort`",
)
def _service_port(application: Application, _: Scope) -> Iterator[Remark]:
    for service in application.of("Service"):
        selector = service.root.at("spec", "selector")
        if not selector.texts:
            continue
        for workload in application.selected(selector, plain=True):
            declared = list(workload.ports())
            names = [port.at("name").text for port in declared if port.at("name").text]
            numbers = [port.at("containerPort").number for port in declared]
            for port in service.root.at("spec", "ports").items():
                target = port.at("targetPort") if port.at("targetPort").given else port.at("port")
                if target.text and target.text not in names:
                    near = nearest(target.text, names)
                    hint = f"targetPort: {near}" if near else None
                    yield Remark(target, f"got `{target.text}`, the pods declare {listed(names) or 'no port'}", hint)
                elif target.number is not None and numbers and target.number not in numbers:
                    yield Remark(target, f"got {target.number}, the pods declare {listed(filter(None, numbers))}")


@TOPIC.rule(
    "route-backend",
    "error",
    what="An HTTPRoute or Ingress sends to a Service, or a port of one, that is not there.",
    why="The gateway answers 500 or 503 to every request.",
    fix="write the name and port of a Service in the same namespace",
)
def _route(application: Application, _: Scope) -> Iterator[Remark]:
    for route in application.of("HTTPRoute"):
        for backend in route.root.all("spec.rules[].backendRefs[]"):
            elsewhere = backend.at("namespace").text not in ("", route.namespace)
            if backend.at("kind").value in (None, "Service") and not elsewhere:
                yield from _backend(application, route, backend.at("name"), backend.at("port"))
    for ingress in application.of("Ingress"):
        paths = ingress.root.all("spec.rules[].http.paths[].backend.service")
        for service in [*ingress.root.all("spec.defaultBackend.service"), *paths]:
            port = service.at("port", "number")
            named = service.at("port", "name")
            yield from _backend(application, ingress, service.at("name"), named if named.given else port)


def _backend(application: Application, route: LocatedDocument, name: Place, port: Place) -> Iterator[Remark]:
    service = application.find("Service", name.text, route)
    if service is None:
        there = [document.name for document in application.of("Service")]
        yield Remark(name, f"got `{name.value}`, Services here: {listed(there) or 'none'}")
        return
    ports = service.root.at("spec", "ports").items()
    known = [declared.at("name" if port.text else "port").value for declared in ports]
    if port.value not in known:
        yield Remark(port, f"got `{port.value}`, the Service has {listed(known)}" if port.given else "missing")


@TOPIC.rule(
    "policy-selects-nothing",
    "warning",
    what="No pod has the labels that a NetworkPolicy selects.",
    why="It protects nothing, and nobody sees that.",
    fix="write labels of the pods in `spec.podSelector`",
)
def _policy(application: Application, _: Scope) -> Iterator[Remark]:
    for policy in application.of("NetworkPolicy"):
        selector = policy.root.at("spec", "podSelector")
        labelled = [
            workload.labels for workload in application.workloads if application.together(workload.document, policy)
        ]
        if not any(matches(selector, labels) for labels in labelled):
            yield Remark(selector, "no pod here has these labels")


@TOPIC.rule(
    "spread-selects-nothing",
    "error",
    what="A topology spread constraint does not count the pods that it is written in.",
    why="Each pod goes wherever it likes: the constraint has no effect.",
    fix="write the workload's own selector as `labelSelector`",
)
def _spread(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for constraint in workload.pod.at("topologySpreadConstraints").items():
            selector = constraint.at("labelSelector")
            if not selector.given or not matches(selector, workload.labels):
                yield Remark(selector, "the pods' own labels do not match it" if selector.given else "missing")
