"""Adds the fields of `kubernetes.pod` in the spec to the pods."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from marina.config.errors import InputError, listed
from marina.config.sections import Pod
from marina.config.spec import Spec

_FIELD = ("kubernetes", "pod")
_REQUIRED, _TERMS = "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"


def add_pod_fields(document: dict[str, Any], spec: Spec, containers: Iterable[str]) -> None:
    """Adds the spec's pod fields to a Deployment or a ServiceAccount; other objects are left alone. `containers` names
    the containers that get the variables and mounts. Raises InputError rather than replace anything that is
    rendered."""
    pod = spec.kubernetes.pod
    if document["kind"] == "ServiceAccount" and pod.service_account_annotations:
        document["metadata"].setdefault("annotations", {}).update(pod.service_account_annotations)
    if document["kind"] != "Deployment":
        return
    template = document["spec"]["template"]
    for name in ("annotations", "labels"):
        if added := getattr(pod, name):
            _refuse(spec, name, set(added) & set(template["metadata"].get(name, {})))
            template["metadata"].setdefault(name, {}).update(added)
    _add_to_pod(template["spec"], pod, spec)
    inside = template["spec"]
    for container in [*inside.get("initContainers", []), *inside["containers"]]:
        if container["name"] in containers:
            _add_to_container(container, pod, spec)
    volumes = [volume["name"] for volume in inside["volumes"]]
    for path, mounted in pod.mounts.items():
        if (name := _mount(path, mounted)["name"]) not in volumes:
            text = f"{spec.place(*_FIELD, 'mounts', path)}: no volume is called `{name}`, allowed: {listed(volumes)}"
            raise InputError(text, hint="add it to `kubernetes.pod.volumes`")


def _add_to_pod(inside: dict[str, Any], pod: Pod, spec: Spec) -> None:
    if pod.volumes:
        _refuse(spec, "volumes", set(pod.volumes) & {volume["name"] for volume in inside["volumes"]})
        inside["volumes"] += [{"name": name} | source | {"name": name} for name, source in pod.volumes.items()]
    if pod.affinity:
        inside["affinity"] = _merge_affinity(spec, inside.get("affinity", {}), pod.affinity)
    if pod.host_aliases:
        inside["hostAliases"] = [{"ip": ip, "hostnames": list(names)} for ip, names in pod.host_aliases.items()]
    if pod.dns:
        options = [{"name": name} | ({"value": value} if value else {}) for name, value in pod.dns.options.items()]
        settings = {
            "nameservers": list(pod.dns.nameservers),
            "searches": list(pod.dns.searches),
            "options": options,
        }
        inside["dnsPolicy"] = pod.dns.policy
        if any(settings.values()):
            inside["dnsConfig"] = {name: value for name, value in settings.items() if value}


def _add_to_container(container: dict[str, Any], pod: Pod, spec: Spec) -> None:
    if pod.env:
        _refuse(spec, "env", set(pod.env) & {variable["name"] for variable in container.get("env", [])})
        container["env"] = [*container.get("env", []), *({"name": key, "value": pod.env[key]} for key in pod.env)]
    if pod.env_from:
        container["envFrom"] = [*container.get("envFrom", []), *map(_source, pod.env_from)]
    if pod.mounts:
        mounts = container["volumeMounts"]
        _refuse(spec, "mounts", set(pod.mounts) & {mount["mountPath"] for mount in mounts})
        container["volumeMounts"] = [*mounts, *(_mount(path, volume) for path, volume in pod.mounts.items())]


def _source(entry: str) -> dict[str, Any]:
    kind, _, name = entry.partition("/")
    return {{"configmap": "configMapRef", "secret": "secretRef"}[kind]: {"name": name}}


def _mount(path: str, volume: str) -> dict[str, Any]:
    name, _, folder = volume.removesuffix(":ro").partition("/")
    mount: dict[str, Any] = {"name": name, "mountPath": path}
    if volume.endswith(":ro"):
        mount["readOnly"] = True
    return mount | ({"subPath": folder} if folder else {})


def _refuse(spec: Spec, field: str, both: set[str]) -> None:
    if both:
        text = f"{spec.place(*_FIELD, field)}: {listed(both)} is already rendered by Marina, allowed: other names"
        raise InputError(text, hint="another name, or `kubernetes.patches` to change what is rendered")


def _merge_affinity(spec: Spec, rendered: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """An affinity that requires both. A node qualifies if it matches any one of the required terms, so the rendered
    requirements are added to each term of the spec; everything else is taken from the spec unchanged."""
    wanted = _part(spec, given, "nodeAffinity", dict)
    ours = rendered.get("nodeAffinity", {}).get(_REQUIRED)
    if ours is None:
        return {**rendered, **given}
    required = _part(spec, wanted, _REQUIRED, dict, "nodeAffinity")
    if not required:
        return {**rendered, **given, "nodeAffinity": {**wanted, _REQUIRED: deepcopy(ours)}}
    terms = _part(spec, required, _TERMS, list, "nodeAffinity", _REQUIRED)
    path = ("nodeAffinity", _REQUIRED, _TERMS)
    if not terms or not all(isinstance(term, dict) for term in terms):
        raise _wrong_affinity(spec, path, terms, "a list of at least one term")
    (needed,) = ours[_TERMS]
    both = {_TERMS: [_with(spec, term, needed["matchExpressions"], *path) for term in terms]}
    return {**rendered, **given, "nodeAffinity": {**wanted, _REQUIRED: both}}


def _with(spec: Spec, term: dict[str, Any], needed: list[dict[str, Any]], *path: str) -> dict[str, Any]:
    expressions = _part(spec, term, "matchExpressions", list, *path)
    # An empty term matches no node, and must not start to match some.
    if not expressions and not term.get("matchFields"):
        return term
    return {**term, "matchExpressions": [*expressions, *(deepcopy(item) for item in needed if item not in expressions)]}


def _part(spec: Spec, parent: dict[str, Any], key: str, kind: type, *path: str) -> Any:
    """The value of a key, which must be of this kind; an empty one if it is missing or null."""
    value = parent.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise _wrong_affinity(spec, (*path, key), value, "a list" if kind is list else "a mapping")
    return value


def _wrong_affinity(spec: Spec, path: tuple[str, ...], value: Any, allowed: str) -> InputError:
    return InputError(f"{spec.place(*_FIELD, 'affinity', *path)}: got `{value}`, allowed: {allowed}")
