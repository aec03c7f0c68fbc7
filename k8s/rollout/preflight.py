"""Checks that a cluster has and allows everything that a deploy needs, and reports all that is missing at once."""

import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from marina.config.errors import ClusterError
from marina.k8s.cluster import ApiError, Cluster, Document, Ref, unselected_monitors
from marina.k8s.rollout.engines import find_engine

# API groups that only help to monitor the service; it runs without them.
OPTIONAL = {
    "monitoring.coreos.com": "no metrics are collected, and no rule or alert is evaluated: install the Prometheus "
    "operator, or set `kubernetes.monitoring.monitor` to `annotations`",
}
_INSTALL = {
    "custom.metrics.k8s.io": "install prometheus-adapter with the rendered values, or set `scaling.autoscaler: none`",
    "external.metrics.k8s.io": "give prometheus-adapter the rendered values, or set `scaling.forecast: none`",
    "metrics.k8s.io": "install metrics-server",
    "keda.sh": "install KEDA (https://keda.sh), or set `scaling.autoscaler: hpa`",
    "gateway.envoyproxy.io": "install Envoy Gateway 1.9, or leave `auth` and `limit_rps` of `kubernetes.route` out",
    "gateway.networking.k8s.io": "install the Gateway API and a controller for it, or leave `kubernetes.route` out",
}
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
# The APIs that autoscalers read: group, the types of metrics in it, the blocker if it is missing, and what is read.
_METRICS_APIS = (
    ("custom.metrics.k8s.io", {"Object", "Pods"}, "custom-metrics", "request rate"),
    ("external.metrics.k8s.io", {"External"}, "external-metrics", "forecast"),
    ("metrics.k8s.io", {"Resource", "ContainerResource"}, "resource-metrics", "cpu usage"),
)
# Verbs on rendered kinds; `delete` is for objects that a later revision no longer renders.
_VERBS, _DELETING = ("create", "delete", "get", "patch"), ("delete", "get")
# Permissions for the state, for following a rollout, and for the inference.
_FOLLOWING = (
    ("", "configmaps", "list create update get patch delete"),
    ("", "events", "list"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
    ("", "pods/portforward", "get create"),
    ("apps", "replicasets", "list"),
)
_FORGETTING = (("", "configmaps", "list update get delete"),)


@dataclass(frozen=True)
class Blocker:
    """Something that is missing or wrong."""

    id: str
    text: str
    hint: str
    acceptable: bool = False
    """Whether `--accept ID` may ignore it."""


@dataclass(frozen=True)
class Preflight:
    """The result of the checks."""

    skipped: tuple[Ref, ...] = ()
    """Objects that are left out because the cluster does not know their kind."""
    notes: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = field(default=(), compare=False)

    def to_data(self) -> dict[str, Any]:
        blockers = [asdict(blocker) for blocker in self.blockers]
        return {"skipped": list(map(str, self.skipped)), "notes": list(self.notes), "blockers": blockers}

    def check(self, accepted: Collection[str] = ()) -> None:
        """Raises ClusterError with all blockers that are not accepted."""
        left = [blocker for blocker in self.blockers if not (blocker.acceptable and blocker.id in accepted)]
        if left:
            hints = dict.fromkeys(
                blocker.hint + (f"; `--accept {blocker.id}` deploys anyway" if blocker.acceptable else "")
                for blocker in left
            )
            text = "\n".join(f"{blocker.id}: {blocker.text}" for blocker in left)
            raise ClusterError(text, hint="\n      ".join(hints))


def run_preflight(cluster: Cluster, documents: Iterable[Document], namespace: str) -> Preflight:
    """Makes all checks. Raises ClusterError only if the cluster cannot be reached."""
    documents = list(documents)
    skipped, notes, blockers = unknown_kinds(cluster, documents)
    known = [document for document in documents if Ref.of(document) not in skipped]
    blockers += [*_image(known), *_metrics(cluster, known), *_namespace(cluster, known, namespace)]
    blockers += _permissions(cluster, map(Ref.of, known), namespace)
    blockers += [blocker for document in known for blocker in _engine(cluster, Ref.of(document))]
    notes += unselected_monitors(cluster, known)
    return Preflight(tuple(skipped), tuple(notes), tuple(blockers))


def _engine(cluster: Cluster, ref: Ref) -> Iterator[Blocker]:
    """Another engine beside a Deployment would replace its pods as well, or run as many of its own."""
    if ref.kind == "Deployment" and (engine := find_engine(cluster, ref.name, ref.namespace)):
        written = f"`marina manifests SPEC --format {engine.output_format}`"
        text = f"{engine.text}; `marina deploy` would replace them too"
        yield Blocker("engine", text, f"apply what {written} writes, or delete {engine.ref} first")


def check_permissions(cluster: Cluster, refs: Iterable[Ref], namespace: str, *, deleting: bool = False) -> None:
    """Raises ClusterError with all permissions on these objects that are missing, and the commands that grant them."""
    blockers = _permissions(cluster, refs, namespace, deleting=deleting)
    Preflight(blockers=tuple(blockers)).check()


def unknown_kinds(cluster: Cluster, documents: list[Document]) -> tuple[list[Ref], list[str], list[Blocker]]:
    """The objects to leave out, notes about them, and blockers for the other kinds that the cluster does not know."""
    skipped: list[Ref] = []
    notes: list[str] = []
    blockers: list[Blocker] = []
    refs_of: dict[tuple[str, str], list[Ref]] = {}
    for ref in map(Ref.of, documents):
        refs_of.setdefault((ref.api_version, ref.kind), []).append(ref)
    for (version, kind), refs in sorted(refs_of.items()):
        if cluster.plural(version, kind) is not None:
            continue
        skipped += refs
        if refs[0].group in OPTIONAL:
            names = ", ".join(ref.name for ref in refs)
            notes.append(f"the cluster does not know `{kind}`; left out: {names}; {OPTIONAL[refs[0].group]}")
        else:
            hint = _INSTALL.get(refs[0].group, "`kubectl api-resources` lists the kinds that it knows")
            blockers.append(Blocker("kind", f"the cluster does not know `{kind}` of `{version}`", hint))
    return skipped, notes, blockers


def without_existing_namespace(cluster: Cluster, documents: Iterable[Document]) -> list[Document]:
    """Leaves out a Namespace that exists: whoever made it, others may rely on it as it is."""
    return [
        document
        for document in documents
        if document["kind"] != "Namespace" or _look_up_namespace(cluster, document["metadata"]["name"]) is None
    ]


def _look_up_namespace(cluster: Cluster, name: str) -> Document | None:
    """The Namespace; None if it does not exist. If we may not read it, we may still work in it: then it is empty."""
    try:
        return cluster.get(Ref("v1", "Namespace", "", name))
    except ApiError as err:
        if err.status != 403:
            raise
        return {}


def _image(documents: list[Document]) -> Iterator[Blocker]:
    for document in documents:
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                # The server's dry run refuses a container without an image, in words of its own.
                if "image" in container and not _DIGEST.search(container["image"]):
                    image = f"container `{container['name']}`: `{container['image']}`"
                    text = f"{image} has no digest, so the image behind the tag can change"
                    yield Blocker("image", text, "marina image SPEC --push records the digest", acceptable=True)


def _metrics(cluster: Cluster, documents: list[Document]) -> Iterator[Blocker]:
    """The metrics APIs that a HorizontalPodAutoscaler uses: while it cannot read one, it removes no pod."""
    scalers = [document for document in documents if document["kind"] == "HorizontalPodAutoscaler"]
    used = {metric["type"] for scaler in scalers for metric in scaler["spec"].get("metrics", [])}
    served = cluster.groups() if used else set()
    for group, types, blocker, what in _METRICS_APIS:
        if used & types and group not in served:
            text = f"the autoscaler cannot read the {what}: the cluster has no `{group}`"
            yield Blocker(blocker, text, _INSTALL[group], acceptable=True)


def _namespace(cluster: Cluster, documents: list[Document], namespace: str) -> Iterator[Blocker]:
    space = _look_up_namespace(cluster, namespace)
    if space and (space.get("status") or {}).get("phase") == "Terminating":
        yield Blocker("namespace", f"`{namespace}` is being deleted", "wait until it is gone")
    if space is None and not any(document["kind"] == "Namespace" for document in documents):
        hint = _by_administrator(f"create namespace {namespace}")
        yield Blocker("namespace", f"`{namespace}` does not exist, and the spec does not create it", hint)


def _permissions(cluster: Cluster, refs: Iterable[Ref], namespace: str, *, deleting: bool = False) -> Iterator[Blocker]:
    if _may(cluster, "*", "*", "*", namespace) and _may(cluster, "", "namespaces", "create", ""):
        return
    wanted = sorted(set(_wanted(cluster, refs, namespace, deleting=deleting)))
    with ThreadPoolExecutor(8) as pool:
        allowed = pool.map(lambda access: _may(cluster, *access), wanted)
        missing = [access for access, may in zip(wanted, allowed, strict=True) if not may]
    lacking: dict[str, list[str]] = {}
    for group, resource, verb, _ in missing:
        lacking.setdefault(f"{resource}{f'.{group}' if group else ''}", []).append(verb)
    if lacking:
        forbidden = "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in sorted(lacking.items()))
        grant = f"-n {namespace} create rolebinding marina --clusterrole=edit --user=USER"
        hint = f"{_by_administrator(grant)}, which grants most; `kubectl auth whoami` shows USER"
        yield Blocker("permission", f"you may not {forbidden} in namespace `{namespace}`", hint)


def _wanted(
    cluster: Cluster, refs: Iterable[Ref], namespace: str, *, deleting: bool
) -> Iterator[tuple[str, str, str, str]]:
    """(group, resource, verb, namespace) of everything that deploy and rollback may do, or delete."""
    for ref in refs:
        plural = cluster.plural(ref.api_version, ref.kind)
        if ref.kind == "Namespace":
            if _look_up_namespace(cluster, ref.name) is None:
                yield from (("", "namespaces", verb, "") for verb in ("create", "patch"))
        elif plural is not None:
            yield from ((ref.group, plural, verb, namespace) for verb in (_DELETING if deleting else _VERBS))
    for group, resource, verbs in _FORGETTING if deleting else _FOLLOWING:
        yield from ((group, resource, verb, namespace) for verb in verbs.split())


def _by_administrator(command: str) -> str:
    """A hint with a command that this context may not run."""
    return f"an administrator of the cluster types `kubectl --context ADMIN {command}`"


def _may(cluster: Cluster, group: str, resource: str, verb: str, namespace: str) -> bool:
    name, _, sub = resource.partition("/")
    attributes = {"group": group, "resource": name, "subresource": sub, "verb": verb, "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body |= {"spec": {"resourceAttributes": attributes}}  # type: ignore[dict-item]
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"].get("allowed"))
