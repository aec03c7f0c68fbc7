"""How the MAR gets into the pod if it is not in the image: as a download, from a volume claim, or from an image volume.

In each case an init container verifies its checksum before the server starts."""

from urllib.parse import urlsplit

from kubernetes import client

from config.sections import ModelCache
from k8s.manifests import pod
from k8s.manifests.plan import Plan

IN_IMAGE = "/model/model.mar"
LOADER = "model-loader"
_FOLDER = "/loaded"
_KEYS = "/store"
_VOLUME = "model"


def mar_volumes(plan: Plan) -> list[tuple[client.V1Volume, client.V1VolumeMount]]:
    """The volume with the MAR, and its mount in the server. Empty if the MAR is in the image."""
    store = plan.spec.kubernetes.model
    if store is None:
        return []
    if store.downloads:
        volume = _cache_volume(store.cache) if store.cache else pod.scratch(_VOLUME, plan.loaded_bytes)
    elif store.claim:
        claim = client.V1PersistentVolumeClaimVolumeSource(claim_name=store.claim, read_only=True)
        volume = client.V1Volume(name=_VOLUME, persistent_volume_claim=claim)
    else:
        source = client.V1ImageVolumeSource(reference=store.image, pull_policy="IfNotPresent")
        volume = client.V1Volume(name=_VOLUME, image=source)
    return [(volume, client.V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=True))]


def secrets(plan: Plan) -> list[client.V1Volume]:
    """The volume with the store's credentials. Only the loader mounts it: the server, which is open to clients, has
    none."""
    store = plan.spec.kubernetes.model
    if store is None or store.secret is None:
        return []
    return [client.V1Volume(name="store", secret=client.V1SecretVolumeSource(secret_name=store.secret))]


def loaders(plan: Plan) -> list[client.V1Container]:
    """The init container that fetches the MAR or verifies it. It runs the server's image with another program."""
    store = plan.spec.kubernetes.model
    if store is None or plan.package is None:
        return []
    source = ["--from", store.url] if store.url else ["--from-environment"] if store.downloads else []
    mounts = [client.V1VolumeMount(name=_VOLUME, mount_path=_FOLDER, read_only=None if store.downloads else True)]
    if store.secret:
        source += ["--secret", _KEYS]
        mounts.append(client.V1VolumeMount(name="store", mount_path=_KEYS, read_only=True))
    # The page cache of the download counts towards the limit, but the kernel frees it when memory runs short.
    small = {"cpu": "100m", "memory": "256Mi"}
    return [
        client.V1Container(
            name=LOADER,
            image=plan.image,
            image_pull_policy="IfNotPresent",
            command=["python", "-m", "server.fetch"],
            args=[_path(plan), "--sha256", plan.package.sha256, *source],
            resources=client.V1ResourceRequirements(requests=dict(small), limits=dict(small)),
            security_context=pod.container_security(),
            volume_mounts=mounts,
        )
    ]


def mar_arguments(plan: Plan) -> list[str]:
    """The server's arguments that say where the MAR is. Empty if it is in the image."""
    return ["--mar", _path(plan)] if plan.spec.kubernetes.model else []


def address(plan: Plan) -> tuple[str | None, int] | None:
    """The store's host, None if it may be anywhere, and its port, which the loader must reach. None if it downloads
    nothing."""
    store = plan.spec.kubernetes.model
    if store is None or not store.downloads:
        return None
    url = urlsplit(store.url or "")
    # A bucket is no host, a presigned address is not known here, and a search domain may complete a short name.
    known = url.scheme in ("http", "https") and set(url.hostname or "") & set(".:")
    return url.hostname if known else None, url.port or (80 if url.scheme == "http" else 443)


def _path(plan: Plan) -> str:
    store = plan.spec.kubernetes.model
    if store and store.cache and plan.package:
        # The cache keeps several packages, each in a file of its own.
        return f"{_FOLDER}/{plan.package.sha256}.mar"
    return f"{_FOLDER}/{'model.mar' if store is None or store.downloads else store.path}"


def _cache_volume(cache: ModelCache) -> client.V1Volume:
    """The volume for downloads that outlives the pod."""
    if cache.claim:
        claim = client.V1PersistentVolumeClaimVolumeSource(claim_name=cache.claim)
        return client.V1Volume(name=_VOLUME, persistent_volume_claim=claim)
    source = client.V1HostPathVolumeSource(path=cache.host_path, type="Directory")
    return client.V1Volume(name=_VOLUME, host_path=source)
