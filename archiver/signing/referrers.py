"""Attaches bundles to an image in its registry, as OCI referrers, by which `cosign` and admission controllers find
them."""

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from marina.archiver.fetching.found import Busy
from marina.archiver.fetching.http import TIMEOUT_S, said
from marina.archiver.fetching.oci import Registry
from marina.config.errors import Refused
from marina.config.record import ImageRecord
from marina.config.signatures import BUNDLE_TYPE, PREDICATES

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


def attach(image: ImageRecord, bundles: Mapping[str, Path]) -> list[str]:
    """Pushes a manifest for each bundle whose subject is the image; returns their digests."""
    assert image.digest
    registry = _Pusher(image.ref)
    try:
        found, manifest = registry.manifest(image.digest)
        kind = manifest.get("mediaType", _MANIFEST)
        subject = {"mediaType": kind, "digest": found, "size": registry.size(found)}
        return [registry.attach(subject, what, file.read_bytes()) for what, file in bundles.items()]
    except (OSError, Busy) as err:
        reason = said(err) if isinstance(err, urllib.error.HTTPError) else str(err)
        raise Refused(f"{image.ref}@{image.digest}: {registry.host} answered {reason}", hint=_login(registry)) from err


def _login(registry: Registry) -> str:
    return f"docker login {registry.host}, with the right to push"


class _Pusher(Registry):
    """A repository that is written to."""

    def attach(self, subject: dict[str, Any], what: str, bundle: bytes) -> str:
        """Pushes one bundle; returns the digest of its manifest."""
        annotations = {
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": PREDICATES[what],
        }
        for blob in (_EMPTY, bundle):
            self._push_blob(blob)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": BUNDLE_TYPE,
            "config": _descriptor(_EMPTY_TYPE, _EMPTY) | {"data": "e30="},
            "layers": [_descriptor(BUNDLE_TYPE, bundle)],
            "subject": subject,
            "annotations": annotations,
        }
        data = json.dumps(manifest).encode()
        digest = _digest(data)
        answer = self._send("PUT", f"{self.url}/manifests/{digest}", data, _MANIFEST)
        if "OCI-Subject" not in answer.headers:
            entry = _descriptor(_MANIFEST, data) | {"artifactType": BUNDLE_TYPE, "annotations": annotations}
            self._list(subject["digest"], entry)
        return digest

    def size(self, digest: str) -> int:
        """The size of a manifest."""
        with self._send("GET", f"{self.url}/manifests/{digest}", None, None) as answer:
            return len(answer.read())

    def _list(self, subject: str, entry: dict[str, Any]) -> None:
        """Adds a referrer to the tag that stands for the list in registries that do not keep one."""
        tag = subject.replace(":", "-")
        try:
            _, index = self.manifest(tag)
        except urllib.error.HTTPError as err:
            if err.code != 404:
                raise
            index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": []}
        others = [listed for listed in index["manifests"] if listed["digest"] != entry["digest"]]
        data = json.dumps(index | {"manifests": [*others, entry]}).encode()
        self._send("PUT", f"{self.url}/manifests/{tag}", data, _INDEX)

    def _push_blob(self, blob: bytes) -> None:
        started = self._send("POST", f"{self.url}/blobs/uploads/", b"", None)
        place = urljoin(self.url, started.headers["Location"])
        query = urlencode({"digest": _digest(blob)})
        self._send("PUT", f"{place}{'&' if urlsplit(place).query else '?'}{query}", blob, "application/octet-stream")

    def _send(self, method: str, url: str, data: bytes | None, kind: str | None) -> Any:
        def ask() -> Any:
            headers = {"Content-Type": kind} if kind else {"Accept": f"{_MANIFEST}, {_INDEX}, */*"}
            request = urllib.request.Request(url, data, {**headers, **self._headers}, method=method)
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)

        return self._authorised(ask)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}
