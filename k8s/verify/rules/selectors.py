"""Rules about selectors, and about the ports and Services that others name."""

from collections.abc import Iterator

from marina.config.errors import listed, nearest
from marina.k8s.verify.application import Application, matches, target_ports
from marina.k8s.verify.located import LocatedDocument, Place
from marina.k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Selectors and Services")

# Labels that change from release to release.
_CHANGING = {
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "chart",
    "helm.sh/chart",
    "heritage",
    "version",
}


@TOPIC.rule(
    "selector-changes",
    "warning",
    what="A selector uses a label that changes from release to release.",
    why="It applies today. The next release fails, as a Deployment's selector is immutable, or its Service drops the "
    "old pods before the new ones are ready.",
    fix="select by name, instance and component only",
)
def _changing(application: Application, _: Scope) -> Iterator[Remark]:
    for document in application.documents:
        for path in ("spec.selector.matchLabels", "spec.selector", "spec.podSelector.matchLabels"):
            for selector in document.root.all(path):
                for key in sorted(selector.texts.keys() & _CHANGING):
                    yield Remark(selector.at(key), f"selects by `{key}`", f"delete `{key}` from the selector")


@TOPIC.rule(
    "service-port",
    "error",
    what="A Service sends to a port that its pods do not declare.",
    why="The API server does not compare them: an undeclared name gives the Service no endpoints, and an undeclared "
    "number is most likely a mistake.",
    fix="set `targetPort` to the name of a container's port",
)
def _service_port(application: Application, _: Scope) -> Iterator[Remark]:
    for service in application.of("Service"):
        selector = service.root.at("spec", "selector")
        if not selector.texts:
            continue
        workloads = application.selected(selector, plain=True)
        everywhere = {port.at("name").text for workload in workloads for port in workload.ports()}
        for workload in workloads:
            declared = list(workload.ports())
            names = [port.at("name").text for port in declared if port.at("name").text]
            numbers = [port.at("containerPort").number for port in declared]
            for target in target_ports(service):
                # Kubernetes leaves out the pods that do not have a named port, if others have it.
                if target.text and target.text not in everywhere:
                    near = nearest(target.text, names)
                    hint = f"targetPort: {near}" if near else None
                    yield Remark(target, f"got `{target.text}`, the pods declare {listed(names) or 'no port'}", hint)
                elif target.number is not None and numbers and target.number not in numbers:
                    text = f"got {target.number}, the pods declare {listed(filter(None, numbers))}"
                    yield Remark(target, text, level="warning")


@TOPIC.rule(
    "route-backend",
    "error",
    what="An HTTPRoute or Ingress sends to a Service, or to a port of one, that does not exist.",
    why="The API server accepts it, and the gateway then answers every request with 500 or 503.",
    fix="use the name and port of a Service in the same namespace; if another folder has it, check both as one",
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
    # A load balancer of AWS takes an action from an annotation of the Ingress.
    if port.text == "use-annotation":
        return
    service = application.find("Service", name.text, route)
    if service is None:
        names = [document.name for document in application.of("Service")]
        text = f"got `{name.value}`, Services here: {listed(names) or 'none'}"
        yield Remark(name, text, level=None if names and application.is_whole else "warning")
        return
    ports = service.root.at("spec", "ports").items()
    known = [declared.at("name" if port.text else "port").value for declared in ports]
    # A Service for a name outside the cluster need not list ports.
    if port.value not in known and service.root.at("spec", "type").text != "ExternalName":
        yield Remark(
            port,
            f"got `{port.value}`, the Service has {listed(filter(None, known)) or 'none'}" if port.given else "missing",
        )


@TOPIC.rule(
    "spread-selects-nothing",
    "error",
    what="A topology spread constraint does not select the pods that carry it.",
    why="It is valid but has no effect: the pods are not spread.",
    fix="use the workload's own selector as `labelSelector`",
)
def _spread(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for constraint in workload.pod.at("topologySpreadConstraints").items():
            selector = constraint.at("labelSelector")
            if not selector.given or not matches(selector, workload.labels):
                yield Remark(selector, "does not match the pods' own labels" if selector.given else "missing")
