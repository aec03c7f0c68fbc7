"""Writes images as container builders export them: an OCI layout in a tar file, or a folder."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any


def layer(files: dict[str, bytes]) -> bytes:
    """The tar of one layer."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write_layout(
    place: Path,
    layers: list[bytes],
    *,
    history: list[dict[str, Any]],
    compressed: bool = False,
    nested: bool = False,
    folder: bool = False,
) -> None:
    """Writes an image with these layers; `nested` wraps it in an index of platforms, as builders with attestations
    do, and `folder` writes no tar file."""
    blobs: dict[str, bytes] = {}

    def add(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
        "history": history,
    }
    stored = [add(gzip.compress(layer, mtime=0) if compressed else layer) for layer in layers]
    manifest = json.dumps({"config": add(json.dumps(config).encode()), "layers": stored}).encode()
    if folder:
        place.mkdir()
        for name, content in (blobs | {"manifest.json": manifest}).items():
            (place / name).write_bytes(content)
        return
    described = add(manifest)
    if nested:
        attestation = add(b"{}") | {"platform": {"os": "unknown", "architecture": "unknown"}}
        platforms = [attestation, described | {"platform": {"os": "linux", "architecture": "amd64"}}]
        described = add(json.dumps({"manifests": platforms}).encode())
    index = {"index.json": json.dumps({"manifests": [described]}).encode()}
    place.write_bytes(layer({f"blobs/sha256/{digest}": content for digest, content in blobs.items()} | index))
