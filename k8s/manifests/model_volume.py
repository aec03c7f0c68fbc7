"""How the MAR comes into the pod when it is not in the image: downloaded, from a claim, or from an image volume.

In each case an init container compares its checksum before the server starts.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from kubernetes.client import (
    V1Container,
    V1HostPathVolumeSource,
    V1ImageVolumeSource,
    V1PersistentVolumeClaimVolumeSource,
    V1ResourceRequirements,
    V1SecretVolumeSource,
    V1Volume,
    V1VolumeMount,
)

from config.sections import ModelCache
from k8s.manifests import pod
from k8s.manifests.plan import Plan

IN_IMAGE = "/model/model.mar"
LOADER = "model-loader"
_FOLDER = "/loaded"
_KEYS = "/store"
_VOLUME = "model"


def volumes(plan: Plan) -> list[tuple[V1Volume, V1VolumeMount]]:
    """The volume that holds the MAR, for the server."""
    store = plan.spec.kubernetes.model
    if store is None:
        return []
    if store.downloads:
        volume = _kept(store.cache) if store.cache else pod.scratch(_VOLUME, plan.loaded_bytes)
    elif store.claim:
        claim = V1PersistentVolumeClaimVolumeSource(claim_name=store.claim, read_only=True)
        volume = V1Volume(name=_VOLUME, persistent_volume_claim=claim)
    else:
        source = V1ImageVolumeSource(reference=store.image, pull_policy="IfNotPresent")
        volume = V1Volume(name=_VOLUME, image=source)
    return [(volume, V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=True))]


def secrets(plan: Plan) -> list[V1Volume]:
    """The credentials, which the loader alone mounts: the server, which clients talk to, has none."""
    store = plan.spec.kubernetes.model
    if store is None or store.secret is None:
        return []
    return [V1Volume(name="store", secret=V1SecretVolumeSource(secret_name=store.secret))]


def loaders(plan: Plan) -> list[V1Container]:
    """The init container: the server's image, which has all it takes, with a small program of its own."""
    store = plan.spec.kubernetes.model
    if store is None or plan.package is None:
        return []
    source = ["--from", store.url] if store.url else ["--from-environment"] if store.downloads else []
    mounts = [V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=None if store.downloads else True)]
    if store.secret:
        source += ["--secret", _KEYS]
        mounts.append(V1VolumeMount(name="store", mount_path=_KEYS, read_only=True))
    # What was downloaded is in the page cache, which counts until the kernel wants it back.
    small = {"cpu": "100m", "memory": "256Mi"}
    return [
        V1Container(
            name=LOADER,
            image=plan.image,
            image_pull_policy="IfNotPresent",
            command=["python", "-m", "server.fetch"],
            args=[_path(plan), "--sha256", plan.package.sha256, *source],
            resources=V1ResourceRequirements(requests=dict(small), limits=dict(small)),
            security_context=pod.container_security(),
            volume_mounts=mounts,
        )
    ]


def arguments(plan: Plan) -> list[str]:
    """Where the server finds the MAR."""
    return ["--mar", _path(plan)] if plan.spec.kubernetes.model else []


def port(plan: Plan) -> int | None:
    """The port of the store that the loader must reach."""
    store = plan.spec.kubernetes.model
    if store is None or not store.downloads:
        return None
    address = urlsplit(store.url or "")
    return address.port or (80 if address.scheme == "http" else 443)


def _path(plan: Plan) -> str:
    store = plan.spec.kubernetes.model
    if store and store.cache and plan.package:
        # Kept beside the others: one file for each package.
        return f"{_FOLDER}/{plan.package.sha256}.mar"
    return f"{_FOLDER}/{'model.mar' if store is None or store.downloads else store.path}"


def _kept(cache: ModelCache) -> V1Volume:
    """The volume that outlives a pod."""
    if cache.claim:
        claim = V1PersistentVolumeClaimVolumeSource(claim_name=cache.claim)
        return V1Volume(name=_VOLUME, persistent_volume_claim=claim)
    source = V1HostPathVolumeSource(path=cache.host_path, type="Directory")
    return V1Volume(name=_VOLUME, host_path=source)
