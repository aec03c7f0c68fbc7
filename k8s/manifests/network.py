"""How requests get in, and everything else is kept out: the Service, the NetworkPolicy, and the Gateway's route."""

from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client

from k8s.manifests import model_volume
from k8s.manifests.deployment import INFERENCE, PAGES
from k8s.manifests.labels import metadata, selector_labels
from k8s.manifests.plan import Plan
from k8s.manifests.yaml_text import custom_resource

# The label with its name that Kubernetes sets on every namespace.
_NAMESPACE = "kubernetes.io/metadata.name"
# Addresses where a cloud's machines find their credentials; no model store has one of them.
_LINK_LOCAL = {"0.0.0.0/0": ["169.254.0.0/16"], "::/0": ["fe80::/10"]}
_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}


def service(plan: Plan) -> client.V1Service:
    """The Service for clients, which only has the inference port."""
    ports = [_service_port(INFERENCE, plan.ports.inference)]
    return client.V1Service(
        api_version="v1",
        kind="Service",
        metadata=metadata(plan),
        spec=client.V1ServiceSpec(type="ClusterIP", selector=selector_labels(plan), ports=ports),
    )


def pages_service(plan: Plan) -> client.V1Service:
    """A headless Service for the supervisors' pages, for a ServiceMonitor and not for clients."""
    ports = [_service_port(PAGES, plan.ports.supervisor)]
    return client.V1Service(
        api_version="v1",
        kind="Service",
        metadata=metadata(plan, f"{plan.name}-pages", component="pages"),
        spec=client.V1ServiceSpec(type="ClusterIP", cluster_ip="None", selector=selector_labels(plan), ports=ports),
    )


def network_policy(plan: Plan) -> client.V1NetworkPolicy:
    """Allows inference for clients, the pages for Prometheus, and the connections that the model needs; everything else
    is closed. The kubelet of a pod's own node may always probe it."""
    network, monitoring = plan.spec.kubernetes.network, plan.spec.kubernetes.monitoring
    clients = [client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector()), *map(_namespace, network.clients)]
    return client.V1NetworkPolicy(
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        metadata=metadata(plan),
        spec=client.V1NetworkPolicySpec(
            pod_selector=client.V1LabelSelector(match_labels=selector_labels(plan)),
            policy_types=["Ingress", "Egress"],
            ingress=[
                allow_from(clients, plan.ports.inference),
                allow_from([_namespace(monitoring.namespace)], plan.ports.supervisor),
            ],
            egress=_egress(plan) or None,
        ),
    )


def http_route(plan: Plan) -> dict[str, Any] | None:
    """The Gateway's route; None without one in the spec. Its timeout is as long as an answer may take, once for the
    queue and once for the worker."""
    route = plan.spec.kubernetes.route
    if route is None:
        return None
    namespace, _, gateway = route.gateway.partition("/")
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": route.path or f"/predictions/{plan.name}"}}],
        "timeouts": {"request": f"{2 * plan.spec.serving.response_timeout_s}s"},
        "backendRefs": [{"name": plan.name, "port": plan.ports.inference, "weight": 1}],
    }
    spec = {
        "parentRefs": [{"name": gateway, "namespace": namespace}],
        **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
        "rules": [rule],
    }
    return custom_resource("gateway.networking.k8s.io/v1", "HTTPRoute", metadata(plan), spec)


def _egress(plan: Plan) -> list[client.V1NetworkPolicyEgressRule]:
    rules = []
    for entry in plan.spec.kubernetes.network.egress:
        network, _, port = entry.rpartition(":")
        rules.append(_to([network], int(port)))
    store = model_volume.address(plan)
    if store and not rules:
        rules.append(_to_host(plan, *store))
    stated = {int(entry.rpartition(":")[2]) for entry in plan.spec.kubernetes.network.egress}
    rules += [_to_host(plan, host, port) for host, port in _other_services(plan) if port not in stated]
    return [*rules, *dns_rules(plan)] if rules else []


def _other_services(plan: Plan) -> list[tuple[str, int]]:
    """Host and port of the services that pods use: Redis, and the model that short prompts are routed to."""
    text = plan.spec.text
    route = [text.route.address] if text and text.route else []
    addresses = [urlsplit(url) for url in [*(url for url, _, _ in plan.spec.redis), *route]]
    places = [(address.hostname or "", address.port or _PORTS[address.scheme]) for address in addresses]
    return list(dict.fromkeys(places))


def _to_host(plan: Plan, host: str | None, port: int) -> client.V1NetworkPolicyEgressRule:
    """Allows a port on an IP address, in the namespace of a Service, or, for any other host, anywhere but at link-local
    addresses. A name such as `redis.cache` may be either, and some networks never match pods by an IP block."""
    if host is None:
        return _to(list(_LINK_LOCAL), port)
    try:
        address = ip_address(host)
    except ValueError:
        _, _, rest = host.partition(".")
        namespace, _, kind = rest.partition(".")
        inside = not kind or kind.partition(".")[0] == "svc"
        outside = rest and kind.partition(".")[0] != "svc"
        peers = _blocks(list(_LINK_LOCAL)) if outside else []
        peers += [_namespace(namespace or plan.namespace)] if inside else []
        return client.V1NetworkPolicyEgressRule(to=peers, ports=[policy_port(port)])
    return _to([f"{address}/{address.max_prefixlen}"], port)


def dns_rules(plan: Plan) -> list[client.V1NetworkPolicyEgressRule]:
    """Allows queries to the DNS servers in the spec."""
    rules = []
    for entry in plan.spec.kubernetes.network.dns:
        place, _, port = entry.rpartition(":")
        peer = client.V1NetworkPolicyPeer(ip_block=client.V1IPBlock(cidr=place)) if "/" in place else _namespace(place)
        ports = [policy_port(int(port), protocol) for protocol in ("UDP", "TCP")]
        rules.append(client.V1NetworkPolicyEgressRule(to=[peer], ports=ports))
    return rules


# Under their Python names, `var_from` and `var_except`, the client silently drops the fields `from` and `except`.
def allow_from(peers: list[client.V1NetworkPolicyPeer], port: int) -> client.V1NetworkPolicyIngressRule:
    """A rule that lets these peers in on one port."""
    return client.V1NetworkPolicyIngressRule.model_validate({"from": peers, "ports": [policy_port(port)]})


def _to(networks: list[str], port: int) -> client.V1NetworkPolicyEgressRule:
    return client.V1NetworkPolicyEgressRule(to=_blocks(networks), ports=[policy_port(port)])


def _blocks(networks: list[str]) -> list[client.V1NetworkPolicyPeer]:
    blocks = [client.V1IPBlock.model_validate({"cidr": block, "except": _LINK_LOCAL.get(block)}) for block in networks]
    return [client.V1NetworkPolicyPeer(ip_block=block) for block in blocks]


def _namespace(name: str) -> client.V1NetworkPolicyPeer:
    return client.V1NetworkPolicyPeer(namespace_selector=client.V1LabelSelector(match_labels={_NAMESPACE: name}))


def policy_port(port: int, protocol: str = "TCP") -> client.V1NetworkPolicyPort:
    """A port of a NetworkPolicy's rule."""
    return client.V1NetworkPolicyPort(port=port, protocol=protocol)


def _service_port(name: str, port: int) -> client.V1ServicePort:
    return client.V1ServicePort(name=name, port=port, target_port=name, protocol="TCP", app_protocol="http")
