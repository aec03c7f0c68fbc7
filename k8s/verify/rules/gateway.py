"""Rules about the Gateway: what its policies hold for, and who goes around it."""

from collections.abc import Iterator

from marina.config.errors import listed
from marina.k8s.verify.objects import LocatedDocument, Objects, Place
from marina.k8s.verify.rule import Remark, Rules

RULES = Rules()
_POLICIES = ("BackendTrafficPolicy", "SecurityPolicy")
# Where Envoy Gateway runs the proxies of all Gateways, unless it is told to run each in the namespace of its Gateway.
_PROXIES = "envoy-gateway-system"
_NAMESPACE = "kubernetes.io/metadata.name"


@RULES.rule(
    "policy-target",
    "error",
    what="A policy of the gateway is for no HTTPRoute that is here.",
    why="The API server accepts it, and nothing happens: requests come in without a key and without a limit.",
    fix="targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: NAME}], with the name of the route",
)
def _target(objects: Objects) -> Iterator[Remark]:
    # Flagger makes a route with the name of its Canary.
    routes = [route.name for route in objects.of("HTTPRoute", "Canary")]
    for policy in objects.of(*_POLICIES):
        names = policy.root.all("spec.targetRefs[].name")
        if not any(name.text in routes for name in names):
            text = f"is for {listed(name.text for name in names) or 'nothing'}"
            text = f"{text}, HTTPRoutes here: {listed(routes) or 'none'}"
            yield Remark(policy.root.at("spec", "targetRefs"), text)


@RULES.rule(
    "gateway-bypassed",
    "warning",
    what="The gateway asks for a key or limits the rate, but others than the gateway may reach the pods directly.",
    why="What they send is neither checked nor counted, and only the NetworkPolicy keeps them out.",
    fix="name only the namespace of the gateway's proxies in `kubernetes.network.clients`, and set `policy: true`",
)
def _bypassed(objects: Objects) -> Iterator[Remark]:
    policies = objects.of(*_POLICIES)
    closing = [each for each in objects.of("NetworkPolicy") if each.root.at("spec", "ingress").given]
    if policies and not closing:
        yield Remark(
            policies[0].root.at("spec"), "no NetworkPolicy: every pod of the cluster can go around the gateway"
        )
    for each in closing if policies else ():
        yield from _others(objects, each)


def _others(objects: Objects, policy: LocatedDocument) -> Iterator[Remark]:
    gateways = {
        place.text for each in objects.of("HTTPRoute") for place in each.root.all("spec.parentRefs[].namespace")
    }
    watching = objects.plan.spec.kubernetes.monitoring.namespace
    for rule in policy.root.at("spec", "ingress").items():
        for peer in rule.at("from").items():
            name = _named(peer)
            if name and name not in {*gateways, _PROXIES, watching}:
                yield Remark(peer, f"lets requests from namespace `{name}` in around the gateway")
        if not rule.at("from").items():
            yield Remark(rule, "lets requests from everywhere in around the gateway")


def _named(peer: Place) -> str:
    """The namespace that a peer names; empty for others, such as the pods beside it."""
    return peer.at("namespaceSelector", "matchLabels").texts.get(_NAMESPACE, "")
