"""Rules about network access: TorchServe's internal ports, public Services, NetworkPolicies, tokens."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from marina.config.errors import listed
from marina.k8s.verify.application import METRICS_PORT, TORCHSERVE_PORTS, Application, Workload, matches, target_ports
from marina.k8s.verify.located import LocatedDocument, Place
from marina.k8s.verify.rule import Remark, Scope, Topic
from marina.k8s.verify.schemas import is_built_in

TOPIC = Topic("Exposure")
REDIS_PORT = 6379
# In a file of TorchServe's settings.
_TOKENS_OFF = re.compile(r"^\s*disable_token_authorization\s*[=:]\s*true\b", re.MULTILINE | re.IGNORECASE)


@TOPIC.rule(
    "port-exposed",
    "error",
    what="A Service or an ingress rule of a NetworkPolicy opens TorchServe's management, metrics or gRPC port. "
    "An ingress rule with `from` may open the metrics.",
    why="Anybody who reaches 8081 can run code, and anybody who reaches gRPC can kill workers; 8082 shows what is "
    "served to whom.",
    fix="delete the port: only inference, 8080, belongs in a Service",
)
def _exposed(application: Application, _: Scope) -> Iterator[Remark]:
    for service in application.of("Service"):
        selector = service.root.at("spec", "selector")
        workloads = application.selected(selector, plain=True) if selector.texts else []
        for target in target_ports(service):
            numbers = {workload.port_number(target) for workload in workloads if workload.torchserves}
            for number in sorted(numbers & TORCHSERVE_PORTS.keys(), key=str):
                yield Remark(target, f"leads to {number}, TorchServe's {TORCHSERVE_PORTS[number or 0]}")
    for policy in application.of("NetworkPolicy"):
        if any(policy in _policies_of(application, workload) for workload in application.torchserves):
            for ingress in policy.root.all("spec.ingress[]"):
                # Prometheus reads the metrics of servers without Marina's supervisor on this port.
                permitted = {METRICS_PORT} if ingress.at("from").items() else set()
                for port in ingress.all("ports[].port"):
                    if port.number in TORCHSERVE_PORTS.keys() - permitted:
                        yield Remark(port, f"opens {port.number}, TorchServe's {TORCHSERVE_PORTS[port.number]}")


@TOPIC.rule(
    "service-public",
    "warning",
    what="A Service is reachable from outside the cluster.",
    why="TorchServe does not limit connections, does not close idle ones, and has no authentication that works with "
    "replicas.",
    fix="type: ClusterIP, with a Gateway or Ingress in front",
)
def _public(application: Application, _: Scope) -> Iterator[Remark]:
    for service in application.of("Service"):
        kind = service.root.at("spec", "type")
        if kind.text in ("LoadBalancer", "NodePort"):
            yield Remark(kind, f"got `{kind.text}`")
        for outside in service.root.all("spec.externalIPs"):
            yield Remark(outside, f"got {outside.value}")


@TOPIC.rule(
    "policy-missing",
    "warning",
    what="No NetworkPolicy limits who can reach the pods behind a Service, or what they can reach.",
    why="Every pod in the cluster reaches all their ports, TorchServe's management included, and the code of a model "
    "can send data anywhere.",
    fix="a NetworkPolicy with the workload's selector and `policyTypes: [Ingress, Egress]`",
)
def _no_policy(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan and not scope.plan.spec.kubernetes.network.policy:
        return
    for workload in application.exposed:
        restricted = {direction for policy in _policies_of(application, workload) for direction in _directions(policy)}
        missing = {"Egress", "Ingress"} - restricted
        if missing:
            yield Remark(workload.document.root, f"no NetworkPolicy restricts {listed(missing)} of its pods")


def _policies_of(application: Application, workload: Workload) -> list[LocatedDocument]:
    policies = application.of("NetworkPolicy")
    return [policy for policy in policies if application.selects(policy.root.at("spec", "podSelector"), workload)]


def _restricting(application: Application, workload: Workload, direction: str) -> list[LocatedDocument]:
    """The policies that restrict one direction of a workload's traffic to what their rules allow."""
    return [policy for policy in _policies_of(application, workload) if direction in _directions(policy)]


def _directions(policy: LocatedDocument) -> set[str]:
    """The directions that a policy restricts: those it names, else Ingress, and Egress if it has rules for it."""
    spec = policy.root.at("spec")
    named = {entry.text for entry in spec.at("policyTypes").items()}
    return named or ({"Ingress", "Egress"} if spec.at("egress").items() else {"Ingress"})


@TOPIC.rule(
    "policy-open",
    "warning",
    what="A rule of a NetworkPolicy admits everybody to every port, or lets pods reach everything.",
    why="It is valid, and undoes the policy: an empty rule allows everything, whatever the other rules say.",
    fix="write `from` and `ports`, or `to` and `ports`",
)
def _open(application: Application, _: Scope) -> Iterator[Remark]:
    for policy in application.of("NetworkPolicy"):
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for rule in policy.root.at("spec", direction).items():
                if not rule.at(peers).items() and not rule.at("ports").items():
                    yield Remark(rule, f"has neither `{peers}` nor `ports`")


@TOPIC.rule(
    "policy-blocks-port",
    "error",
    what="A NetworkPolicy blocks a port that a Service or a PodMonitor uses.",
    why="Each object is valid by itself. Clients time out, or Prometheus gets no metrics and nothing scales.",
    fix="an ingress rule with the port of the container",
)
def _blocks(application: Application, _: Scope) -> Iterator[Remark]:
    # A policy of Cilium or Calico may open the port.
    foreign = any(item.kind.endswith("NetworkPolicy") and not is_built_in(item) for item in application.documents)
    for workload in application.workloads:
        policies = _restricting(application, workload, "Ingress")
        # No policy applies to pods in the node's network.
        if not policies or workload.pod.at("hostNetwork").value is True:
            continue
        for port in _used_ports(application, workload):
            number = workload.port_number(port)
            if number is not None and not any(_opens(policy, workload, number) for policy in policies):
                names = listed(policy.reference for policy in policies)
                rule = f"ingress: [{{from: […], ports: [{{port: {number}}}]}}] in the NetworkPolicy"
                text = f"leads to {number}, but no ingress rule of {names} opens it"
                # An object that names no namespace need not be in that of the policy.
                sure = not foreign and any(policy.namespace == workload.document.namespace for policy in policies)
                yield Remark(port, text, rule, None if sure else "warning")


def _used_ports(application: Application, workload: Workload) -> Iterator[Place]:
    """The ports of a workload's pods that a Service or PodMonitor names."""
    for service in application.services_of(workload):
        yield from target_ports(service)
    for monitor in application.of("PodMonitor"):
        if matches(monitor.root.at("spec", "selector"), workload.labels):
            yield from monitor.root.all("spec.podMetricsEndpoints[].port")


@TOPIC.rule(
    "policy-blocks-redis",
    "warning",
    what="A NetworkPolicy blocks the port of a Redis that the spec names.",
    why="The pods cannot reach it: cached answers are computed again, and requests that name a conversation get 503.",
    fix="an egress rule with the port of that Redis",
)
def _blocks_redis(application: Application, scope: Scope) -> Iterator[Remark]:
    for workload in application.exposed:
        policies = _restricting(application, workload, "Egress")
        for url in scope.plan.spec.redis if scope.plan and policies else ():
            port = urlsplit(url).port or REDIS_PORT
            if not any(_opens(policy, workload, port, "egress") for policy in policies):
                names = listed(policy.reference for policy in policies)
                text = f"no egress rule of {names} opens port {port}, which `{url}` needs"
                yield Remark(policies[0].root.at("spec", "egress"), text)


def _opens(policy: LocatedDocument, workload: Workload, number: int, direction: str = "ingress") -> bool:
    for rule in policy.root.at("spec", direction).items():
        ports = rule.at("ports").items()
        if not ports:
            return True
        for port in ports:
            first, last = workload.port_number(port.at("port")), port.at("endPort").number
            if not port.at("port").given or (first is not None and first <= number <= (last or first)):
                return True
    return False


@TOPIC.rule(
    "torchserve-token",
    "warning",
    what="TorchServe starts with its token authorisation on.",
    why="Each pod makes its own random tokens, valid for an hour: probes get 400, and so do clients behind a Service.",
    fix="add `--disable-token-auth`, and authenticate at the gateway",
)
def _tokens(application: Application, _: Scope) -> Iterator[Remark]:
    texts = (text for item in application.of("ConfigMap") for text in item.root.at("data").texts.values())
    if any(_TOKENS_OFF.search(text) for text in texts):
        return
    for container in application.long_lived:
        words = [*container.at("command").items(), *container.at("args").items()]
        line = " ".join(str(word.value) for word in words)
        variables = {
            variable.at("name").text: str(variable.at("value").value) for variable in container.at("env").items()
        }
        off = variables.get("TS_DISABLE_TOKEN_AUTHORIZATION", "").lower() == "true" or "--disable-token-auth" in line
        repository = container.at("image").text.partition("@")[0].rpartition("/")[2].partition(":")[0]
        if repository == "torchserve" and not words and not off:
            yield Remark(container.at("args"), "missing, and the image's default command leaves it on")
        if {"torchserve", "--start"} <= set(line.split()) and not off:
            yield Remark(words[0], f"got `{line[:60]}`, without `--disable-token-auth`")
