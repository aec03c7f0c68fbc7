"""Checks that a cluster has and allows everything that a deploy needs, and reports all that is missing at once."""

import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from marina.config.errors import ClusterError
from marina.k8s.cluster import (
    ApiError,
    Cluster,
    Document,
    Ref,
    describe_capacity,
    fitting_nodes,
    grant_commands,
    missing_room,
    namespace_limits,
    unselected_monitors,
)
from marina.k8s.manifests import SUPPORTED_VERSIONS

# API groups that only help to monitor the service; it runs without them.
OPTIONAL = {
    "monitoring.coreos.com": "no metrics are collected, and no rule or alert is evaluated: install the Prometheus "
    "operator, or set `kubernetes.monitoring.monitor` to `annotations`",
}
_INSTALL = {
    "keda.sh": "install KEDA (https://keda.sh), or set `scaling.autoscaler: hpa`",
    "gateway.networking.k8s.io": "install the Gateway API and a controller for it, or leave `kubernetes.route` out",
}
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
# How many nodes that do not fit are named.
_MOST_NODES = 5
_RESOURCE_TYPES = ("Resource", "ContainerResource")
# The APIs that autoscalers read: group, the types of metrics in it, the blocker if it is missing, what is read, hint.
_METRICS_APIS = (
    (
        "custom.metrics.k8s.io",
        ("Object", "Pods"),
        "custom-metrics",
        "request rate",
        "install prometheus-adapter with the rendered values, or set `scaling.autoscaler: none`",
    ),
    (
        "external.metrics.k8s.io",
        ("External",),
        "external-metrics",
        "forecast",
        "give prometheus-adapter the rendered values, or set `scaling.forecast: none`",
    ),
    ("metrics.k8s.io", _RESOURCE_TYPES, "resource-metrics", "cpu usage", "install metrics-server"),
)
# The metrics that an autoscaler can do without: by blocker, their types and their name in a sentence.
DROPPABLE_METRICS = {"external-metrics": (("External",), "forecast"), "resource-metrics": (_RESOURCE_TYPES, "cpu")}
# Verbs on rendered kinds; `delete` is for objects that a later revision no longer renders.
_VERBS = ("create", "delete", "get", "patch")
_DELETING = ("delete", "get")
# Permissions for the state, for following a rollout, and for the inference.
_FOLLOWING = (
    ("", "configmaps", "list create update get patch delete"),
    ("", "events", "list watch"),
    ("", "pods", "list watch"),
    ("", "pods/log", "get"),
    ("apps", "deployments", "list watch"),
    ("apps", "replicasets", "list watch"),
)
_CANARY = (("", "services/proxy", "create"), ("", "pods/portforward", "get create"))
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

    version: str
    user: str
    skipped: tuple[Ref, ...] = ()
    """Objects that are left out because the cluster does not know their kind."""
    notes: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = field(default=(), compare=False)

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"version": self.version, "user": self.user, "notes": list(self.notes)}
        skipped, blockers = list(map(str, self.skipped)), [asdict(blocker) for blocker in self.blockers]
        return data | {"skipped": skipped, "blockers": blockers}

    def check(self, accepted: Collection[str] = ()) -> None:
        """Raises ClusterError with all blockers that are not accepted."""
        left = [blocker for blocker in self.blockers if not (blocker.acceptable and blocker.id in accepted)]
        if left:
            hints = dict.fromkeys(map(_hint, left))
            text = "\n".join(f"{blocker.id}: {blocker.text}" for blocker in left)
            raise ClusterError(text, hint="\n      ".join(hints))


def _hint(blocker: Blocker) -> str:
    return blocker.hint + (f"; `--accept {blocker.id}` deploys anyway" if blocker.acceptable else "")


def run_preflight(cluster: Cluster, documents: Iterable[Document], namespace: str) -> Preflight:
    """Makes all checks. Raises ClusterError only if the cluster cannot be reached."""
    documents = list(documents)
    version = cluster.version()
    user = _user(cluster)
    skipped, notes, blockers = unknown_kinds(cluster, documents)
    known = [document for document in documents if Ref.of(document) not in skipped]
    blockers += [*_version(version), *_image(known), *_metrics(cluster, known)]
    refs = map(Ref.of, known)
    blockers += [*_namespace(cluster, known, namespace), *_permissions(cluster, refs, namespace, user)]
    notes += [text for text in (describe_capacity(cluster), *namespace_limits(cluster, namespace)) if text]
    notes += unselected_monitors(cluster, known, namespace)
    unfit, lacking = _nodes(cluster, known)
    notes, blockers = [*notes, *unfit], [*blockers, *lacking]
    return Preflight(version.get("gitVersion", "?"), user, tuple(skipped), tuple(notes), tuple(blockers))


def check_permissions(cluster: Cluster, refs: Iterable[Ref], namespace: str, *, deleting: bool = False) -> None:
    """Raises ClusterError with all permissions on these objects that are missing, and the commands that grant them."""
    blockers = _permissions(cluster, refs, namespace, _user(cluster), deleting=deleting)
    Preflight("", "", blockers=tuple(blockers)).check()


def _user(cluster: Cluster) -> str:
    """Our user name in the cluster; empty for clusters before 1.28, which do not tell."""
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
    text = f"the cluster runs Kubernetes {version.get('gitVersion')}, supported: {first} to {last}"
    if numbers < oldest:
        yield Blocker("version", text, "upgrade the cluster")
    elif numbers > newest:
        yield Blocker("version", text, "upgrade marina", acceptable=True)


def _image(documents: list[Document]) -> Iterator[Blocker]:
    for document in documents:
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                # The server's dry run refuses a container without an image, in words of its own.
                if "image" in container and not _DIGEST.search(container["image"]):
                    image = f"container `{container['name']}`: `{container['image']}`"
                    text = f"{image} has no digest, so the image behind the tag can change"
                    yield Blocker("image", text, "marina image SPEC --push records the digest", acceptable=True)


def _nodes(cluster: Cluster, documents: list[Document]) -> tuple[list[str], list[Blocker]]:
    """Notes about the nodes that pods cannot run on, or a blocker if there are no others."""
    for document in documents:
        if document["kind"] != "Deployment":
            continue
        pod = document["spec"]["template"]["spec"]
        fit = fitting_nodes(cluster, pod)
        unfit = sorted(fit.others.items()) if fit else []
        texts = [f"`{name}`, which lacks {', '.join(labels)}" for name, labels in unfit[:_MOST_NODES]]
        if fit is None or fit.nodes:
            notes, room = [f"no pod can run on node {text}" for text in texts], missing_room(cluster, pod, fit)
            return [*notes, room] if room else notes, []
        text = f"no node matches the pods' selectors: {'; '.join(texts)}"
        hint = (
            "label the nodes (Node Feature Discovery labels their cpus), or change `model.cpu_target`, "
            "`kubernetes.node_selector` or `kubernetes.pod.affinity`"
        )
        return [], [Blocker("nodes", text, hint, acceptable=True)]
    return [], []


def unknown_kinds(cluster: Cluster, documents: list[Document]) -> tuple[list[Ref], list[str], list[Blocker]]:
    """The objects to leave out, notes about them, and blockers for the other kinds that the cluster does not know."""
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
        if group in OPTIONAL:
            names = ", ".join(ref.name for ref in refs)
            notes.append(f"the cluster does not know `{kind}`; left out: {names}; {OPTIONAL[group]}")
        else:
            hint = _INSTALL.get(group, "`kubectl api-resources` lists the kinds that it knows")
            blockers.append(Blocker("kind", f"the cluster does not know `{kind}` of `{version}`", hint))
    return skipped, notes, blockers


def _metrics(cluster: Cluster, documents: list[Document]) -> Iterator[Blocker]:
    """The metrics APIs that a HorizontalPodAutoscaler uses must answer."""
    used = {
        metric["type"]
        for document in documents
        if document["kind"] == "HorizontalPodAutoscaler"
        for metric in document["spec"].get("metrics", [])
    }
    served = cluster.groups() if used else set()
    for group, types, blocker, what, hint in _METRICS_APIS:
        if used & set(types) and (why := _unserved(cluster, group, served)):
            yield Blocker(blocker, f"the autoscaler cannot read the {what}: {why}", hint, acceptable=True)


def without_metrics(document: Document, types: Collection[str]) -> Document:
    """A HorizontalPodAutoscaler without metrics of these types, as long as another metric is left."""
    if document["kind"] != "HorizontalPodAutoscaler":
        return document
    left = [metric for metric in document["spec"].get("metrics", []) if metric["type"] not in types]
    return document | {"spec": document["spec"] | {"metrics": left}} if left else document


def _unserved(cluster: Cluster, group: str, served: set[str]) -> str:
    """Why an aggregated API cannot be used; empty if it answers."""
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
        hint = f"ask an administrator of the cluster to run `kubectl create namespace {namespace}`"
        yield Blocker("namespace", f"`{namespace}` does not exist, and the spec does not create it", hint)


def look_up_namespace(cluster: Cluster, name: str) -> Document | None:
    """The Namespace; None if it does not exist. If we may not read it, we may still work in it: then it only has its
    name."""
    ref = Ref("v1", "Namespace", "", name)
    try:
        return cluster.get(ref)
    except ApiError as err:
        if err.status != 403:
            raise
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def namespace_is_fixed(cluster: Cluster, name: str) -> bool:
    """Whether the Namespace exists and we may not apply it, whoever created it."""
    space = look_up_namespace(cluster, name)
    return space is not None and (
        "uid" not in space["metadata"] or not _may(cluster, "", "namespaces", "", "patch", name)
    )


def _permissions(
    cluster: Cluster, refs: Iterable[Ref], namespace: str, user: str, *, deleting: bool = False
) -> Iterator[Blocker]:
    if _may(cluster, "*", "*", "", "*", namespace) and _may(cluster, "", "namespaces", "", "create", ""):
        return
    wanted = sorted(set(_wanted(cluster, refs, namespace, deleting=deleting)))
    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda access: _may(cluster, *access), wanted))
    missing = {access for access, may in zip(wanted, allowed, strict=True) if not may}
    # One of the two ways to send the inference is enough.
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
        yield Blocker("permission", text, grant_commands(user or "USER", scoped, scope or None))


def _wanted(
    cluster: Cluster, refs: Iterable[Ref], namespace: str, *, deleting: bool
) -> Iterator[tuple[str, str, str, str, str]]:
    """(group, resource, subresource, verb, namespace) of everything that deploy and rollback may do, or delete."""
    for ref in refs:
        resource = cluster.resource(ref.api_version, ref.kind)
        if ref.kind == "Namespace" and not deleting:
            if look_up_namespace(cluster, ref.name) is None:
                yield from (("", "namespaces", "", verb, "") for verb in ("create", "patch"))
        elif resource is not None:
            yield from ((ref.group, resource.name, "", verb, namespace) for verb in (_DELETING if deleting else _VERBS))
    for group, resource_name, verbs in _FORGETTING if deleting else (*_FOLLOWING, *_CANARY):
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
