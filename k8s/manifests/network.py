"""How requests get in, and everything else is kept out: the Service, the NetworkPolicy, and the Gateway's route."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from marina.k8s.manifests import model_volume
from marina.k8s.manifests.deployment import INFERENCE, PAGES
from marina.k8s.manifests.labels import JUDGE, metadata, pods_selector, selector_labels
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest, resource

# The label with its name that Kubernetes sets on every namespace.
_NAMESPACE = "kubernetes.io/metadata.name"
# Addresses where a cloud's machines find their credentials; no model store has one of them.
_LINK_LOCAL = {"0.0.0.0/0": ["169.254.0.0/16"], "::/0": ["fe80::/10"]}
_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}


def service(plan: Plan) -> Manifest:
    """The Service for clients, which only has the inference port."""
    ports = [service_port(INFERENCE, plan.ports.inference)]
    spec = {"type": "ClusterIP", "ports": ports, "selector": selector_labels(plan)}
    return resource("v1", "Service", metadata(plan), spec=spec)


def pages_service(plan: Plan) -> Manifest:
    """A headless Service for the supervisors' pages, for a ServiceMonitor and not for clients."""
    ports = [service_port(PAGES, plan.ports.supervisor)]
    spec = {"type": "ClusterIP", "clusterIP": "None", "ports": ports, "selector": pods_selector(plan)}
    return resource("v1", "Service", metadata(plan, f"{plan.name}-pages", component="pages"), spec=spec)


def network_policy(plan: Plan) -> Manifest:
    """Allows inference for clients, the pages for Prometheus, and the connections that the model needs; everything else
    is closed. The kubelet of a pod's own node may always probe it."""
    network, monitoring = plan.spec.kubernetes.network, plan.spec.kubernetes.monitoring
    clients: list[Manifest] = [{"podSelector": {}}, *map(_namespace, network.clients)]
    judges = [{"podSelector": {"matchLabels": selector_labels(plan, JUDGE)}}] if plan.engine else []
    spec = {
        "egress": _egress(plan) or None,
        "ingress": [
            allow_from(clients, plan.ports.inference),
            allow_from([_namespace(monitoring.namespace), *judges], plan.ports.supervisor),
        ],
        "podSelector": {"matchLabels": pods_selector(plan)},
        "policyTypes": ["Ingress", "Egress"],
    }
    return resource("networking.k8s.io/v1", "NetworkPolicy", metadata(plan), spec=spec)


def http_route(plan: Plan) -> Manifest | None:
    """The Gateway's route; None without one in the spec."""
    route = plan.spec.kubernetes.route
    if route is None:
        return None
    namespace, _, gateway = route.gateway.partition("/")
    rule = {
        "matches": [{"path": {"type": kind, "value": value}} for kind, value in route_paths(plan)],
        "timeouts": {"request": request_timeout(plan)},
        "backendRefs": [{"name": plan.name, "port": plan.ports.inference, "weight": 1}],
    }
    spec = {
        "parentRefs": [{"name": gateway, "namespace": namespace}],
        **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
        "rules": [rule],
    }
    return resource("gateway.networking.k8s.io/v1", "HTTPRoute", metadata(plan), spec=spec)


def request_timeout(plan: Plan) -> str:
    """The spec's, or as long as an answer may take, once for the queue and once for the worker."""
    route = plan.spec.kubernetes.route
    stated = route.timeout_s if route else "auto"
    return f"{2 * plan.spec.serving.response_timeout_s if stated == 'auto' else stated}s"


def route_paths(plan: Plan) -> list[tuple[str, str]]:
    """The paths of requests for the model, and how each is compared."""
    route, name = plan.spec.kubernetes.route, plan.spec.url_name
    chosen = route.path if route else None
    if chosen or not plan.spec.model.adopted:
        return [("PathPrefix", chosen or f"/predictions/{name}")]
    if route and route.limit_rps is not None:
        # Envoy Gateway counts for each match by itself, so there must be only one.
        inside = rf"/(predictions|explanations|v2/models)/{re.escape(name)}(/.*)?"
        return [("RegularExpression", rf"{inside}|/v1/models/{re.escape(name)}:(predict|explain)")]
    # The clients of an archive may know any of TorchServe's. A prefix ends at a slash.
    prefixes = (f"/predictions/{name}", f"/explanations/{name}", f"/v2/models/{name}")
    whole = (f"/v1/models/{name}:predict", f"/v1/models/{name}:explain")
    return [*(("PathPrefix", path) for path in prefixes), *(("Exact", path) for path in whole)]


def _egress(plan: Plan) -> list[Manifest]:
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
    """Host and port of the services that pods use: Redis, the model that short prompts are routed to, and the collector
    of traces."""
    text, tracing = plan.spec.text, plan.spec.tracing
    route = [text.route.address] if text and text.route else []
    collector = [tracing.traces_url] if tracing else []
    addresses = [urlsplit(url) for url in [*plan.spec.redis, *route, *collector]]
    places = [(address.hostname or "", address.port or _PORTS[address.scheme]) for address in addresses]
    return list(dict.fromkeys(places))


def _to_host(plan: Plan, host: str | None, port: int) -> Manifest:
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
        return allow_to(peers, policy_port(port))
    return _to([f"{address}/{address.max_prefixlen}"], port)


def dns_rules(plan: Plan) -> list[Manifest]:
    """Allows queries to the DNS servers in the spec."""
    rules = []
    for entry in plan.spec.kubernetes.network.dns:
        place, _, port = entry.rpartition(":")
        peer = {"ipBlock": {"cidr": place}} if "/" in place else _namespace(place)
        rules.append(allow_to([peer], *(policy_port(int(port), protocol) for protocol in ("UDP", "TCP"))))
    return rules


def allow_from(peers: list[Manifest], port: int) -> Manifest:
    """A rule that lets these peers in on one port."""
    return {"from": peers, "ports": [policy_port(port)]}


def allow_to(peers: list[Manifest], *ports: Manifest) -> Manifest:
    """A rule that lets pods reach these peers on these ports."""
    return {"ports": list(ports), "to": peers}


def policy_port(port: int, protocol: str = "TCP") -> Manifest:
    """A port of a NetworkPolicy's rule."""
    return {"port": port, "protocol": protocol}


def _to(networks: list[str], port: int) -> Manifest:
    return allow_to(_blocks(networks), policy_port(port))


def _blocks(networks: list[str]) -> list[Manifest]:
    return [{"ipBlock": {"cidr": block, "except": _LINK_LOCAL.get(block)}} for block in networks]


def _namespace(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}}


def service_port(name: str, port: int) -> Manifest:
    """A port of a Service that leads to the port of that name in the pods."""
    return {"name": name, "appProtocol": "http", "port": port, "protocol": "TCP", "targetPort": name}
