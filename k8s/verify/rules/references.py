"""Rules about the other objects that a pod needs: configuration, secrets, claims, its ServiceAccount."""

from collections.abc import Iterator

from marina.config.errors import listed
from marina.config.sections import Pod
from marina.k8s.verify.application import Application, Workload
from marina.k8s.verify.located import Place
from marina.k8s.verify.rule import Level, Remark, Scope, Topic

TOPIC = Topic("References")

# The fields in which a pod names another object, and that object's kind.
_IN_PODS = (
    ("volumes[].configMap.name", "ConfigMap"),
    ("volumes[].projected.sources[].configMap.name", "ConfigMap"),
    ("volumes[].secret.secretName", "Secret"),
    ("volumes[].projected.sources[].secret.name", "Secret"),
    ("volumes[].persistentVolumeClaim.claimName", "PersistentVolumeClaim"),
    ("serviceAccountName", "ServiceAccount"),
    ("imagePullSecrets[].name", "Secret"),
)
_IN_CONTAINERS = (
    ("envFrom[].configMapRef.name", "ConfigMap"),
    ("envFrom[].secretRef.name", "Secret"),
    ("env[].valueFrom.configMapKeyRef.name", "ConfigMap"),
    ("env[].valueFrom.secretKeyRef.name", "Secret"),
)


@TOPIC.rule(
    "reference-missing",
    "warning",
    what="A pod needs a ConfigMap, Secret, PersistentVolumeClaim or ServiceAccount that is not among the objects.",
    why="The API server does not look it up: unless the cluster already has it, the pods never start.",
    fix="add the object, or make sure that it is in the cluster",
)
def _missing(application: Application, scope: Scope) -> Iterator[Remark]:
    expected = _expected_names(scope)
    for workload in application.workloads:
        for node, kind in _references(workload):
            if application.find(kind, node.text, workload.document) or node.text in expected or _is_optional(node):
                continue
            if (kind, node.text) != ("ServiceAccount", "default"):
                yield Remark(node, f"{kind} `{node.value}` is not among the objects")


def _references(workload: Workload) -> Iterator[tuple[Place, str]]:
    for path, kind in _IN_PODS:
        # A chart may write `serviceAccountName: ""`, which names none.
        yield from ((node, kind) for node in workload.pod.all(path) if node.value != "")
    for container in workload.all_containers:
        for path, kind in _IN_CONTAINERS:
            yield from ((node, kind) for node in container.all(path))


def _is_optional(node: Place) -> bool:
    parent = node.document.root.at(*node.path[:-1])
    return parent.at("optional").value is True


def _expected_names(scope: Scope) -> set[str]:
    """Names of the objects that the spec expects to be in the cluster already."""
    if scope.plan is None:
        return set()
    kubernetes = scope.plan.spec.kubernetes
    store = kubernetes.model
    stored = (store.claim and store.claim.partition("/")[0], store.secret, store.cache) if store else ()
    secrets = kubernetes.pull_secrets
    return {name for name in (*stored, *secrets, *_named_by(kubernetes.pod)) if name}


def _named_by(pod: Pod) -> Iterator[str]:
    """Names of the objects from which `kubernetes.pod` of a spec takes variables and volumes."""
    yield from (source.partition("/")[2] for source in pod.env_from)
    for volume in pod.volumes.values():
        for source in volume.values():
            if isinstance(source, dict):
                yield from (str(source[key]) for key in ("claimName", "name", "secretName") if key in source)


@TOPIC.rule(
    "claim-shared",
    "error",
    what="There can be several pods, if only while a rollout replaces one, but they mount a claim that only one node "
    "or one pod can mount.",
    why="Each object is valid by itself. A second pod on another node waits forever, and a rollout never ends.",
    fix="accessModes: [ReadOnlyMany] or [ReadWriteMany], or put the model into the image; for one pod "
    "`strategy: {type: Recreate}`",
)
def _claims(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        several = application.may_have_several(workload)
        if not workload.serves or workload.document.kind == "StatefulSet" or not (several or _overlaps(workload)):
            continue
        for name in workload.pod.all("volumes[].persistentVolumeClaim.claimName"):
            claim = application.find("PersistentVolumeClaim", name.text, workload.document)
            modes = {mode.text for mode in claim.root.all("spec.accessModes[]")} if claim else set()
            if modes and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
                when = (
                    "there can be several pods" if several else "a rollout starts the new pod before the old one ends"
                )
                # The new pod may get the same node.
                sure = (several or "ReadWriteOnce" not in modes) and claim and claim.is_applied_with(workload.document)
                level: Level | None = None if sure else "warning"
                yield Remark(name, f"`{name.text}` is {listed(modes)}, and {when}", level=level)


def _overlaps(workload: Workload) -> bool:
    """Whether a rollout of a Deployment with one pod waits for the new pod before it ends the old one."""
    strategy = workload.document.root.at("spec", "strategy")
    most, fewer = (strategy.at("rollingUpdate", name).value for name in ("maxSurge", "maxUnavailable"))
    rolls = workload.document.kind == "Deployment" and strategy.at("type").text != "Recreate"
    # Both are 25 % by default, of which Kubernetes rounds the first up and the second down.
    return rolls and most not in (0, "0%") and fewer in (None, 0, "0%", "25%")


@TOPIC.rule(
    "key-missing",
    "error",
    what="A pod uses a key that its ConfigMap or Secret does not have.",
    why="The API server does not look inside the other object: the pod is accepted, but never starts.",
    fix="use one of the keys that the object has",
)
def _keys(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        volumes = [*workload.pod.all("volumes[]"), *workload.pod.all("volumes[].projected.sources[]")]
        used = [(volume, f"{kind}.items[].key", kind) for volume in volumes for kind in ("configMap", "secret")]
        for container in workload.all_containers:
            used += [
                (node, f"{kind}.key", kind)
                for node in container.all("env[].valueFrom")
                for kind in ("configMapKeyRef", "secretKeyRef")
            ]
        for root, path, field in used:
            kind = "ConfigMap" if field.startswith("configMap") else "Secret"
            # Only a volume of its own calls it `secretName`.
            name = root.at(field, "secretName").text or root.at(field, "name").text
            holder = application.find(kind, name, workload.document)
            for key in root.all(path) if holder and root.at(field, "optional").value is not True else []:
                parts = [holder.root.at(part).table for part in ("data", "binaryData", "stringData")] if holder else []
                keys = set().union(*parts)
                if key.text not in keys:
                    # Controllers fill empty ones: with the CA of the cluster, or the token of a ServiceAccount. And one
                    # of another kustomization may be for another cluster.
                    sure = keys and holder and holder.is_applied_with(workload.document)
                    text = f"got `{key.value}`, {kind} `{name}` has {listed(keys) or 'no key'}"
                    yield Remark(key, text, level=None if sure else "warning")
