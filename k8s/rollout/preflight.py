"""What a cluster must have and allow before anything is changed: everything that is missing is said at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from config.errors import ClusterError
from k8s.cluster import ApiError, Cluster, Document, Ref, allocatable, fitting, grant, namespace_limits, unselected
from k8s.manifests import SUPPORTED_VERSIONS

# Objects of these groups help to watch the service; it runs without them.
_OPTIONAL = {
    "monitoring.coreos.com": "no metrics are collected, no rule and no alert is evaluated: install the Prometheus "
    "operator, or set `monitoring.monitor: annotations`",
}
_INSTALL = {
    "keda.sh": "install KEDA (https://keda.sh), or set `scaling.autoscaler: hpa`",
    "gateway.networking.k8s.io": "install the Gateway API and a controller of it, or leave `kubernetes.route` out",
}
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
# Nodes that are named, of those that do not fit.
_MOST_NODES = 5
_NO_RESOURCE_METRICS, _NO_EXTERNAL_METRICS = "resource-metrics", "external-metrics"
_RESOURCE_TYPES = ("Resource", "ContainerResource")
# What the autoscaler can go without: by blocker, types of metrics and their name in a sentence.
SPARED = {_NO_RESOURCE_METRICS: (_RESOURCE_TYPES, "cpu"), _NO_EXTERNAL_METRICS: (("External",), "forecast")}
_METRICS, _EXTERNAL_METRICS = "custom.metrics.k8s.io", "external.metrics.k8s.io"
_RESOURCE_METRICS = "metrics.k8s.io"
_SERVED_BY = {"External": _EXTERNAL_METRICS}
# Verbs on what is rendered; `delete` is for what a later revision no longer renders.
_OURS = ("create", "delete", "get", "patch")
# What is looked at while a rollout is waited for, and how its inference is sent.
_ALSO = (
    ("", "configmaps", "list create update get patch delete"),
    ("", "events", "list watch"),
    ("", "pods", "list watch"),
    ("", "pods/log", "get"),
    ("apps", "deployments", "list watch"),
    ("apps", "replicasets", "list watch"),
)
_CANARY = (("", "services/proxy", "create"), ("", "pods/portforward", "get create"))


@dataclass(frozen=True)
class Blocker:
    """One thing that is missing or wrong. Accepted ones are said and passed over."""

    id: str
    text: str
    hint: str
    acceptable: bool = False


@dataclass(frozen=True)
class Site:
    """What was found out about a cluster."""

    version: str
    user: str
    skipped: tuple[Ref, ...] = ()
    """Objects that are not applied, because the cluster does not know their kind."""
    notes: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = field(default=(), compare=False)

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"version": self.version, "user": self.user, "notes": list(self.notes)}
        skipped, blockers = list(map(str, self.skipped)), [asdict(blocker) for blocker in self.blockers]
        return data | {"skipped": skipped, "blockers": blockers}

    def check(self, accepted: Collection[str] = ()) -> None:
        """ClusterError with everything that is missing and not accepted."""
        left = [blocker for blocker in self.blockers if not (blocker.acceptable and blocker.id in accepted)]
        if left:
            hints = dict.fromkeys(map(_hint, left))
            text = "\n".join(f"{blocker.id}: {blocker.text}" for blocker in left)
            raise ClusterError(text, hint="\n      ".join(hints))


def _hint(blocker: Blocker) -> str:
    return blocker.hint + (f"; `--accept {blocker.id}` deploys all the same" if blocker.acceptable else "")


def survey(cluster: Cluster, documents: Iterable[Document], namespace: str) -> Site:
    """Looks at everything; only a cluster that cannot be asked at all is an error here."""
    documents = list(documents)
    version = cluster.version()
    user = _user(cluster)
    skipped, notes, blockers = _kinds(cluster, documents)
    known = [document for document in documents if Ref.of(document) not in skipped]
    blockers += [*_version(version), *_image(known), *_metrics(cluster, known)]
    blockers += [*_namespace(cluster, known, namespace), *_permissions(cluster, known, namespace, user)]
    notes += [text for text in (allocatable(cluster), *namespace_limits(cluster, namespace)) if text]
    notes += unselected(cluster, known, namespace)
    unfit, lacking = _nodes(cluster, known)
    notes, blockers = [*notes, *unfit], [*blockers, *lacking]
    return Site(version.get("gitVersion", "?"), user, tuple(skipped), tuple(notes), tuple(blockers))


def _user(cluster: Cluster) -> str:
    """Who we are to the cluster; clusters before 1.28 do not say."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = cluster.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        return str(answer["status"]["userInfo"].get("username", ""))
    except ApiError as err:
        if err.status == 401:
            raise
        return ""


def _version(version: dict[str, str]) -> Iterator[Blocker]:
    numbers = tuple(int(re.sub(r"\D.*", "", version.get(part, "")) or 0) for part in ("major", "minor"))
    first, last = SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]
    oldest, newest = (tuple(map(int, known.split("."))) for known in (first, last))
    text = f"the cluster is {version.get('gitVersion')}; supported is {first} to {last}"
    if numbers < oldest:
        yield Blocker("version", text, "upgrade the cluster")
    elif numbers > newest:
        yield Blocker("version", text, "upgrade marina", acceptable=True)


def _image(documents: list[Document]) -> Iterator[Blocker]:
    for document in documents:
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                if not _DIGEST.search(container["image"]):
                    image = f"container `{container['name']}`: `{container['image']}`"
                    text = f"{image} has no digest, so what runs can change"
                    yield Blocker("image", text, "marina image SPEC pushes it and records the digest", acceptable=True)


def _nodes(cluster: Cluster, documents: list[Document]) -> tuple[list[str], list[Blocker]]:
    """What is said of nodes that pods cannot come to, and whether there is one that they can."""
    for document in documents:
        if document["kind"] != "Deployment":
            continue
        candidates = fitting(cluster, document["spec"]["template"]["spec"])
        if candidates is None:
            continue
        texts = [f"`{name}`, which lacks {', '.join(labels)}" for name, labels in sorted(candidates.others.items())]
        if candidates.nodes:
            return [f"no pod can run on node {text}" for text in texts[:_MOST_NODES]], []
        text = f"no node has what the pods select: {'; '.join(texts[:_MOST_NODES])}"
        hint = (
            "label the nodes (Node Feature Discovery labels their cpus), or change `model.cpu_target`, "
            "`kubernetes.cpu_labels`, `kubernetes.node_selector` or `kubernetes.pod.affinity`"
        )
        return [], [Blocker("nodes", text, hint, acceptable=True)]
    return [], []


def _kinds(cluster: Cluster, documents: list[Document]) -> tuple[list[Ref], list[str], list[Blocker]]:
    """What is left out, what is said about it, and which kinds are missing."""
    skipped: list[Ref] = []
    notes: list[str] = []
    blockers: list[Blocker] = []
    for version, kind in sorted({(document["apiVersion"], document["kind"]) for document in documents}):
        if cluster.resource(version, kind) is not None:
            continue
        refs = [
            Ref.of(document) for document in documents if (document["apiVersion"], document["kind"]) == (version, kind)
        ]
        group = version.partition("/")[0]
        skipped += refs
        if group in _OPTIONAL:
            names = ", ".join(ref.name for ref in refs)
            notes.append(f"the cluster does not know `{kind}`, so {names} is left out: {_OPTIONAL[group]}")
        else:
            hint = _INSTALL.get(group, "kubectl api-resources lists what it knows")
            blockers.append(Blocker("kind", f"the cluster does not know `{kind}` of `{version}`", hint))
    return skipped, notes, blockers


def _metrics(cluster: Cluster, documents: list[Document]) -> Iterator[Blocker]:
    """What a HorizontalPodAutoscaler asks must be there to be asked."""
    wanted = {
        _RESOURCE_METRICS if metric["type"] in _RESOURCE_TYPES else _SERVED_BY.get(metric["type"], _METRICS)
        for document in documents
        if document["kind"] == "HorizontalPodAutoscaler"
        for metric in document["spec"].get("metrics", [])
    }
    served = cluster.groups() if wanted else set()
    if _METRICS in wanted and (why := _unserved(cluster, _METRICS, served)):
        hint = "install prometheus-adapter with the rendered values, or set `scaling.autoscaler: none`"
        yield Blocker("custom-metrics", f"the autoscaler's rate cannot be asked: {why}", hint, acceptable=True)
    if _EXTERNAL_METRICS in wanted and (why := _unserved(cluster, _EXTERNAL_METRICS, served)):
        hint = "give prometheus-adapter the rendered values, or set `scaling.forecast: none`"
        yield Blocker(_NO_EXTERNAL_METRICS, f"the autoscaler's forecast cannot be asked: {why}", hint, acceptable=True)
    if _RESOURCE_METRICS in wanted and (why := _unserved(cluster, _RESOURCE_METRICS, served)):
        text = f"the autoscaler's cpu cannot be asked: {why}"
        yield Blocker(_NO_RESOURCE_METRICS, text, "install metrics-server", acceptable=True)


def without_metrics(document: Document, types: Collection[str]) -> Document:
    """A HorizontalPodAutoscaler without the metrics that nobody serves, as long as another one is left."""
    if document["kind"] != "HorizontalPodAutoscaler":
        return document
    left = [metric for metric in document["spec"].get("metrics", []) if metric["type"] not in types]
    return document | {"spec": document["spec"] | {"metrics": left}} if left else document


def _unserved(cluster: Cluster, group: str, served: set[str]) -> str:
    """Why an aggregated API cannot be asked; empty when it answers."""
    if group not in served:
        return f"the cluster has no `{group}`"
    try:
        versions = cluster.request("GET", f"/apis/{group}")["versions"]
        cluster.request("GET", f"/apis/{versions[0]['groupVersion']}")
    except (ApiError, KeyError, IndexError) as err:
        return f"`{group}` does not answer: {getattr(err, 'message', None) or err}"
    return ""


def _namespace(cluster: Cluster, documents: list[Document], namespace: str) -> Iterator[Blocker]:
    space = look_up_namespace(cluster, namespace)
    if space and (space.get("status") or {}).get("phase") == "Terminating":
        yield Blocker("namespace", f"`{namespace}` is being deleted", "wait until it is gone")
    if space is None and not any(document["kind"] == "Namespace" for document in documents):
        hint = f"an administrator of the cluster types `kubectl create namespace {namespace}`"
        yield Blocker("namespace", f"`{namespace}` does not exist, and the spec does not create it", hint)


def look_up_namespace(cluster: Cluster, name: str) -> Document | None:
    """The Namespace; None when it is not there. Who may not look at it may well work in it: then its name is all."""
    ref = Ref("v1", "Namespace", "", name)
    try:
        return cluster.get(ref)
    except ApiError as err:
        if err.status != 403:
            raise
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def namespace_is_fixed(cluster: Cluster, name: str) -> bool:
    """Whether a Namespace is there that we may not apply, whoever made it; then it stays as it is."""
    space = look_up_namespace(cluster, name)
    return space is not None and (
        "uid" not in space["metadata"] or not _may(cluster, "", "namespaces", "", "patch", name)
    )


def _permissions(cluster: Cluster, documents: list[Document], namespace: str, user: str) -> Iterator[Blocker]:
    if _may(cluster, "*", "*", "", "*", namespace) and _may(cluster, "", "namespaces", "", "create", ""):
        return
    wanted = sorted(set(_wanted(cluster, documents, namespace)))
    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda access: _may(cluster, *access), wanted))
    missing = {access for access, may in zip(wanted, allowed, strict=True) if not may}
    # Either way of sending the inference will do.
    proxy = {access for access in wanted if access[1:3] == ("services", "proxy")}
    forward = {access for access in wanted if access[1:3] == ("pods", "portforward")}
    if not missing & proxy or not missing & forward:
        missing -= proxy | forward
    else:
        missing -= forward
    for scope in sorted({access[4] for access in missing}):
        scoped = {
            (f"{resource}{f'/{sub}' if sub else ''}{f'.{group}' if group else ''}", verb)
            for group, resource, sub, verb, where in missing
            if where == scope
        }
        verbs_of: dict[str, list[str]] = {}
        for resource, verb in sorted(scoped):
            verbs_of.setdefault(resource, []).append(verb)
        forbidden = "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in verbs_of.items())
        place = f"in namespace `{scope}`" if scope else "in the cluster"
        text = f"`{user or 'you'}` may not {forbidden} {place}"
        yield Blocker("permission", text, grant(user or "USER", scoped, scope or None))


def _wanted(cluster: Cluster, documents: list[Document], namespace: str) -> Iterator[tuple[str, str, str, str, str]]:
    """(group, resource, subresource, verb, namespace) of everything a deploy, a rollback or a delete may do."""
    for document in documents:
        ref = Ref.of(document)
        resource = cluster.resource(ref.api_version, ref.kind)
        if ref.kind == "Namespace":
            if look_up_namespace(cluster, ref.name) is None:
                yield from (("", "namespaces", "", verb, "") for verb in ("create", "patch"))
        elif resource is not None:
            yield from ((ref.group, resource.name, "", verb, namespace) for verb in _OURS)
    for group, resource_name, verbs in (*_ALSO, *_CANARY):
        name, _, sub = resource_name.partition("/")
        yield from ((group, name, sub, verb, namespace) for verb in verbs.split())


def _may(cluster: Cluster, group: str, resource: str, sub: str, verb: str, namespace: str) -> bool:
    attributes = {"group": group, "resource": resource, "subresource": sub, "verb": verb, "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = cluster.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body | {"spec": {"resourceAttributes": attributes}},
    )
    return bool(answer["status"].get("allowed"))
