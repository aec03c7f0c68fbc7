"""How the MAR gets into the pod if it is not in the image: as a download, from a volume claim, or from an image volume.

In each case an init container verifies its checksum before the server starts."""

from urllib.parse import urlsplit

from marina.k8s.manifests import pod
from marina.k8s.manifests.config_map import CONFIG, CONFIG_FOLDER
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest

IN_IMAGE = "/model/model.mar"
LOADER = "model-loader"
_FOLDER = "/loaded"
_KEYS = "/store"
_VOLUME = "model"


def mar_volumes(plan: Plan) -> list[tuple[Manifest, Manifest]]:
    """The volume with the MAR, and its mount in the server. Empty if the MAR is in the image."""
    store = plan.spec.kubernetes.model
    if store is None:
        return []
    if store.downloads:
        volume = _cache_volume(store.cache) if store.cache else pod.scratch(_VOLUME, plan.loaded_bytes)
    elif store.claim:
        volume = {
            "name": _VOLUME,
            "persistentVolumeClaim": {"claimName": store.claim.partition("/")[0], "readOnly": True},
        }
    else:
        volume = {"name": _VOLUME, "image": {"pullPolicy": "IfNotPresent", "reference": store.image}}
    return [(volume, pod.mount(_VOLUME, _FOLDER, read_only=True))]


def secrets(plan: Plan) -> list[Manifest]:
    """The volume with the store's credentials. Only the loader mounts it: the server, which is open to clients, has
    none."""
    store = plan.spec.kubernetes.model
    if store is None or store.secret is None:
        return []
    return [{"name": "store", "secret": {"secretName": store.secret}}]


def loaders(plan: Plan) -> list[Manifest]:
    """The init container that fetches the MAR or verifies it. It runs the server's image with another program."""
    store = plan.spec.kubernetes.model
    if store is None or plan.package is None:
        return []
    source = ["--from", store.url] if store.url else ["--from-environment"] if store.downloads else []
    mounts = [pod.mount(_VOLUME, _FOLDER, read_only=not store.downloads)]
    if store.secret:
        source += ["--secret", _KEYS]
        mounts.append(pod.mount("store", _KEYS, read_only=True))
    if plan.signatures:
        source += ["--signed", CONFIG_FOLDER]
        mounts.append(pod.mount(CONFIG, CONFIG_FOLDER, read_only=True))
    return [
        {
            "name": LOADER,
            "args": [_path(plan), "--sha256", plan.package.sha256, *source],
            "command": ["python", "-m", "marina.server.fetch"],
            "image": plan.image,
            "imagePullPolicy": "IfNotPresent",
            # The page cache of the download counts towards the limit, but the kernel frees it when memory runs short.
            "resources": pod.exactly({"cpu": "100m", "memory": "256Mi"}),
            "securityContext": pod.container_security(),
            "volumeMounts": mounts,
        }
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
    inside = store.claim.partition("/")[2] if store and store.claim else ""
    return f"{_FOLDER}/{inside or 'model.mar'}"


def _cache_volume(cache: str) -> Manifest:
    """The volume for downloads that outlives the pod."""
    if cache.startswith("/"):
        return {"name": _VOLUME, "hostPath": {"path": cache, "type": "Directory"}}
    return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": cache}}
