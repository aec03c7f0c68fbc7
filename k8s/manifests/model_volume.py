"""How the MAR comes into the pod when it is not in the image: downloaded, from a claim, or from an image volume.

In each case an init container compares its checksum before the server starts.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from kubernetes.client import (
    V1Container,
    V1ImageVolumeSource,
    V1PersistentVolumeClaimVolumeSource,
    V1ResourceRequirements,
    V1Volume,
    V1VolumeMount,
)

from k8s.manifests import pod
from k8s.manifests.plan import Plan

IN_IMAGE = "/model/model.mar"
LOADER = "model-loader"
_FOLDER = "/loaded"
_VOLUME = "model"


def volumes(plan: Plan) -> list[tuple[V1Volume, V1VolumeMount]]:
    """The volume that holds the MAR, for the server."""
    store = plan.spec.kubernetes.model
    if store is None:
        return []
    if store.url:
        volume = pod.scratch(_VOLUME, plan.loaded_bytes)
    elif store.claim:
        claim = V1PersistentVolumeClaimVolumeSource(claim_name=store.claim, read_only=True)
        volume = V1Volume(name=_VOLUME, persistent_volume_claim=claim)
    else:
        source = V1ImageVolumeSource(reference=store.image, pull_policy="IfNotPresent")
        volume = V1Volume(name=_VOLUME, image=source)
    return [(volume, V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=True))]


def loaders(plan: Plan) -> list[V1Container]:
    """The init container: the server's image, which has all it takes, with a small program of its own."""
    store = plan.spec.kubernetes.model
    if store is None or plan.package is None:
        return []
    source = ["--from", store.url] if store.url else []
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
            volume_mounts=[V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=None if store.url else True)],
        )
    ]


def arguments(plan: Plan) -> list[str]:
    """Where the server finds the MAR."""
    return ["--mar", _path(plan)] if plan.spec.kubernetes.model else []


def port(plan: Plan) -> int | None:
    """The port of the store that the loader must reach."""
    store = plan.spec.kubernetes.model
    if store is None or store.url is None:
        return None
    address = urlsplit(store.url)
    return address.port or (443 if address.scheme == "https" else 80)


def _path(plan: Plan) -> str:
    store = plan.spec.kubernetes.model
    return f"{_FOLDER}/{'model.mar' if store is None or store.url else store.path}"
