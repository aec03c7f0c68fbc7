"""Adds the fields of `kubernetes.pod` in the spec to the pods."""

from collections.abc import Iterable
from typing import Any

from config.errors import InputError, listed
from config.sections import Pod
from config.spec import Spec
from k8s.extending.affinity import AffinityError, merge_affinity

_FIELD = ("kubernetes", "pod")


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
        try:
            inside["affinity"] = merge_affinity(inside.get("affinity", {}), pod.affinity)
        except AffinityError as err:
            raise InputError(f"{spec.place(*_FIELD, 'affinity', *err.path.split('.'))}: {err}") from err
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
