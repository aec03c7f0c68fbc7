"""The section `kubernetes` of a spec: what a pod may use, who may reach it, who watches it."""

import re
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from marina.config.quantity import canonical, quantity
from marina.config.sections.extension import Patch, Pod
from marina.config.sections.gateway import Auth
from marina.config.sections.section import (
    Count,
    DeviceName,
    Filled,
    HostName,
    Labels,
    Name,
    NamespacedName,
    Natural,
    ObjectName,
    PageUrl,
    Registry,
    Section,
    Taint,
    UrlPath,
    matching,
)
from marina.config.sections.store import ModelStore

_MIB = 2**20

PodsOrShare = Natural | Annotated[str, matching(r"^(100|[1-9]?[0-9])%$", "a whole number, or a share such as `25%`")]


def _bare_number(amount: object) -> object:
    # Kubernetes takes `cpu: 2` without quotes, so do we.
    return str(amount) if isinstance(amount, (int, float)) and not isinstance(amount, bool) else amount


def _cores(text: str) -> str:
    if quantity(text) <= 0:
        raise ValueError("allowed: more than 0")
    if canonical(text).endswith(("n", "u", "e-6", "e-9")):
        raise ValueError("allowed: thousandths of a core, `500m`")
    return text


def _memory(text: str) -> str:
    if (amount := quantity(text)) < _MIB:
        raise ValueError("allowed: at least `1Mi`; `m` is a thousandth of a byte" if amount else "allowed: more than 0")
    return text


# For editors.
_NUMBER_OR_TEXT = WithJsonSchema({"type": ["number", "string"]})
Cores = Annotated[str, BeforeValidator(_bare_number), AfterValidator(_cores), _NUMBER_OR_TEXT]
MemoryOrAuto = Annotated[
    str,
    BeforeValidator(_bare_number),
    AfterValidator(lambda text: text if text == "auto" else _memory(text)),
    _NUMBER_OR_TEXT,
]


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,4}", text) is not None and int(text) < 65536


def _is_network(text: str) -> bool:
    # `ip_network` also takes addresses without a length, and netmasks, but the cluster does not.
    try:
        ip_network(text)
    except ValueError:
        return False
    return re.search(r"/[0-9]+$", text) is not None


def _destination(entry: str) -> str:
    network, _, port = entry.rpartition(":")
    if not (_is_network(network) and _is_port(port)):
        raise ValueError("allowed: `CIDR:PORT` such as `10.0.0.0/8:443` or `10.0.0.5/32:443`")
    return entry


def _name_server(entry: str) -> str:
    place, _, port = entry.rpartition(":")
    named = re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", place) is not None
    if not ((named or _is_network(place)) and _is_port(port)):
        raise ValueError("allowed: `NAMESPACE:PORT` or `CIDR:PORT` such as `openshift-dns:5353`")
    return entry


class Resources(Section):
    """What one pod may use."""

    cpu: Cores = "2"
    """Cores of a pod, request and limit, a Kubernetes quantity; `workers: auto` uses all of them. Lands in the
    Deployment."""
    memory: MemoryOrAuto = "auto"
    """Memory of a pod, request and limit, a Kubernetes quantity; auto: a quarter more than the measured peak, or at
    least 2Gi if nothing was measured. Lands in the Deployment."""
    processor: Filled | None = None
    """Processor of the nodes, as `model name` in their `/proc/cpuinfo`: evidence that was measured on another one is
    refused; default: any. Compared with `evidence.json`."""
    gpu: Natural = 0
    """GPUs of a pod. Lands in the Deployment."""
    gpu_resource: DeviceName = "nvidia.com/gpu"
    """The cluster's name for a GPU, such as `nvidia.com/mig-1g.10gb` for a slice of one. Lands in the Deployment."""


class Monitoring(Section):
    """How the cluster's Prometheus reads its metrics."""

    monitor: Literal["annotations", "none", "pod", "service"] = "pod"
    """A PodMonitor or a ServiceMonitor for the Prometheus operator, `prometheus.io/scrape` annotations for a Prometheus
    without it, or nothing. Lands in `monitoring/` beside the manifests."""
    namespace: ObjectName = "monitoring"
    """The namespace of Prometheus, the only one that may read the pages of a pod. Lands in the NetworkPolicy."""
    scrape_interval_s: Annotated[int, Field(ge=1, le=120)] = 5
    """How often Prometheus reads the metrics of a pod, s; the autoscaler's rate covers four readings, and so long it
    takes until all of a change is seen. Lands in the monitor and in every rule."""
    runbook_url: PageUrl = "docs/runbook.md"
    """Address of the runbook for the people on call: publish `docs/runbook.md` (in the wheel: `share/doc/marina`)
    and set its address here. Each alert links to its own heading on that page."""
    labels: Labels = Field(default={})
    """Labels by which your Prometheus operator and Grafana select what they read, such as `release: prometheus`. Land
    in the monitor, the rules and the dashboard."""


class Network(Section):
    """Who may reach the pods, and whom they may reach."""

    policy: bool = True
    """Whether a NetworkPolicy is rendered; `false` if the cluster's owner writes them. Lands in the manifests."""
    clients: tuple[ObjectName, ...] = ()
    """Other namespaces that may send requests, such as that of your gateway. Lands in the NetworkPolicy."""
    dns: tuple[Annotated[str, AfterValidator(_name_server)], ...] = ("kube-system:53",)
    """The name servers of the pods, as `NAMESPACE:PORT` or `CIDR:PORT`: `openshift-dns:5353` on OpenShift,
    `169.254.20.10/32:53` for NodeLocal DNSCache. Lands in every NetworkPolicy that limits what pods may reach."""
    egress: tuple[Annotated[str, AfterValidator(_destination)], ...] = ()
    """What pods may reach, as `CIDR:PORT`; default: nothing, or what `model.url` needs. Lands in the NetworkPolicy."""


class Gate(Section):
    """One pod of the new version serves beside all old ones, until it is judged by the requests that both answered."""

    minutes: Annotated[float, Field(ge=1, le=1440)]
    """How long it stands; certainly worse pods end it early. `deploy` says how long it should. Read by `deploy`."""
    min_requests: Natural = 0
    """How many requests each version must have answered, or nothing is decided and the old version stays. Read by
    `deploy`."""
    regression: Annotated[float, Field(gt=0, le=1)] = 0.2
    """How much slower the p50 and p99 of the new version may be: 0.2 is 20 %. It may fail `slo.error_rate` of the
    requests more than the old one. Read by `deploy`."""
    agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Which share of the sample and of the files of `model.calibration` both versions must answer alike; default: any,
    because a model that was trained again answers otherwise on purpose. Read by `deploy`."""


# What judges for another engine, or by hand, if the spec has no gate.
DEFAULT_GATE = Gate(minutes=10)


class Rollout(Section):
    """How a new version replaces the old one."""

    max_surge: PodsOrShare | Literal["auto"] = "auto"
    """How many pods a rollout may add, a number or a share such as `25%`; auto: `25%`, or 1 with GPUs. 0 if the cluster
    has no room for one more pod: then each pod ends before its successor starts; otherwise none ends before that is
    ready. Lands in the Deployment."""

    gate: Gate | None = None
    """One pod of the new version serves beside all old ones, until it is judged by the requests that both answered;
    default: no gate. Read by `deploy`."""

    @property
    def max_unavailable(self) -> int:
        """How many pods a rollout may remove before their successors are ready."""
        return 1 if str(self.max_surge) in ("0", "0%") else 0


class Route(Section):
    """Lets requests in from outside, through a Gateway (Gateway API)."""

    gateway: NamespacedName
    """The Gateway as `NAMESPACE/NAME`; it must allow routes from this namespace. Lands in the HTTPRoute."""
    hostnames: tuple[HostName, ...] = ()
    """Host names of the service; default: all that the Gateway listens for. Lands in the HTTPRoute."""
    path: UrlPath | None = None
    """Requests whose path starts with this are sent to the service; default: `/predictions/NAME`. Lands in the
    HTTPRoute."""
    timeout_s: Count | Literal["auto"] = "auto"
    """How long the Gateway waits for the whole answer, a retry included, s; auto: twice `serving.response_timeout_s`,
    once for the queue and once for the worker. Lands in the HTTPRoute."""
    auth: Auth | None = None
    """Whose requests the Gateway lets in; default: everybody's. Needs Envoy Gateway 1.9. Lands in a SecurityPolicy."""
    limit_rps: Count | Literal["auto"] | None = None
    """Requests/s that the Gateway lets in; more get 429. auto: what all pods hold, the autoscaler's target times
    `scaling.max_replicas`, which needs the evidence. Default: no limit. Needs Envoy Gateway 1.9, each proxy of which
    counts for itself. Lands in a BackendTrafficPolicy."""
    limit_by: Literal["all", "client"] = "all"
    """all: `limit_rps` is for all clients together; client: a number for each client that `auth` tells apart, counted
    by all proxies together: that needs the rate limit service of Envoy Gateway, and a Redis. Lands in the
    BackendTrafficPolicy."""
    max_parallel: Count | Literal["auto"] = "auto"
    """Requests that the Gateway may have open at the pods, beside `auth` or `limit_rps`; more get 503. auto: as many as
    all pods can queue and compute; Envoy's own limit of 1024 may be less. Lands in the BackendTrafficPolicy."""
    gateway_replicas: Count = 1
    """How many proxies the Gateway has: `limit_rps` and `max_parallel` are divided by it, because each proxy counts for
    itself. Lands in the BackendTrafficPolicy."""

    @property
    def has_policies(self) -> bool:
        """Whether it needs more of the Gateway than a route."""
        return self.auth is not None or self.limit_rps is not None


class Spot(Section):
    """Nodes that the cloud may take away at any time, for less money."""

    provider: Literal["aks", "eks", "gke"]
    """Whose nodes they are: Karpenter's on EKS, node pools on GKE and AKS. It decides labels and taints, how long the
    notice is, and whether pods are evicted. Lands in the Deployment."""
    on_demand: Annotated[
        str, matching(r"^(0|10|20|25|30|40|50|60|70|75|80|90)%$", "`0%`, `10%`, `20%`, `25%`, `30%` and so on to `90%`")
    ] = "20%"
    """Share of the pods that stay on other nodes, which have the label `capacity-spread`; `0%`: none. Lands in the
    Deployment."""
    notice_s: Annotated[int, Field(ge=10, le=600)] | None = None
    """How long pods have from the notice until they are killed, s; default: 120 on eks, 15 on gke, 30 on aks. Larger on
    gke, up to 120, if the node pool's grace period was extended. Compared with the grace period."""
    pods_per_node: Count = 1
    """How many more pods than another node one node may have. Lands in the Deployment."""


class Kubernetes(Section):
    """Where it runs."""

    namespace: Name = "marina"
    """The namespace of every object. Lands in all manifests."""
    create_namespace: bool = True
    """Whether the manifests contain the Namespace itself; `false` if you may not create one, or if others use it."""
    registry: Registry = "registry.local/marina"
    """Prefix of the image's name. Lands in the image and the Deployment."""
    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets with the credentials of the registry. Land in the Deployment."""
    resources: Resources = Resources()
    """What one pod may use."""
    rollout: Rollout = Rollout()
    """How a new version replaces the old one."""
    run_as_user: Count | None = 10001
    """User and group of the pods' processes; the default is the image's own. null: the namespace chooses, as on
    OpenShift. Lands in the Deployment."""
    node_selector: Labels = Field(default={})
    """Labels that a node must have; default: those that Node Feature Discovery sets for `model.cpu_target`. Lands in
    the Deployment."""
    tolerations: tuple[Taint, ...] = ()
    """Taints that a node may have, as kubectl writes them: `dedicated=gpu:NoSchedule`; pods with a GPU always tolerate
    `nvidia.com/gpu`. Lands in the Deployment."""
    node_loss_s: Annotated[int, Field(ge=0, le=3600)] = 30
    """How long the pods of a node that no longer answers stay assigned to it, s, after the cluster has noticed, which
    takes it some 40 s; then others replace them. Kubernetes alone would wait 300 s. Lands in the Deployment."""
    spot: Spot | None = None
    """Nodes that the cloud may take away at any time, for less money; default: none."""
    network: Network = Network()
    """Who may reach the pods, and whom they may reach."""
    model: ModelStore | None = None
    """Where the pod gets the MAR from; default: it is in the image."""
    route: Route | None = None
    """Lets requests in from outside, through a Gateway; default: none, only the Service."""
    monitoring: Monitoring = Monitoring()
    """How the cluster's Prometheus reads its metrics."""
    pod: Pod = Pod()
    """Variables and volumes that you add to the pods."""
    patches: tuple[Patch, ...] = ()
    """Changes to the rendered objects, applied in this order, before `verify` and `deploy` read them."""
