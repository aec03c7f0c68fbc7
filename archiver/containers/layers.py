"""Reads an image that a builder exported: its layers, their sizes, and single files in them. Docker exports a tar file
with an OCI layout, podman and buildah a folder, which is faster."""

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from marina.config.errors import InputError, reason_of
from marina.config.record import ImageLayer

_PIECE = 1 << 20
# What builders add around an instruction of the Dockerfile.
_NOISE = re.compile(r"^/bin/sh -c (#\(nop\) *)?|(?<= )(dir|file|multi):[0-9a-f]{64} in | # buildkit$")


@dataclass(frozen=True)
class Layout:
    """An image's configuration, and its layers from the base upwards."""

    config: dict[str, Any]
    layers: tuple[ImageLayer, ...]

    @property
    def bytes(self) -> int:
        """The uncompressed size of all layers."""
        return sum(layer.bytes for layer in self.layers)


def read_layout(exported: Path) -> Layout:
    """Reads an exported image; InputError if it is not an image, or if a layer does not have the configured digest."""
    with _opened(exported) as (manifest, open_blob):
        with open_blob(manifest["config"]["digest"]) as stream:
            config = json.load(stream)
        history = [entry for entry in config.get("history", []) if not entry.get("empty_layer")]
        instructions = [_NOISE.sub("", entry.get("created_by", "")).strip() for entry in history]
        digests, layers = config["rootfs"]["diff_ids"], []
        for number, (entry, expected) in enumerate(zip(manifest["layers"], digests, strict=True)):
            with _unpacked(open_blob(entry["digest"])) as stream:
                digest, size = _measure_layer(stream)
            if digest != expected:
                raise InputError(f"{exported}: layer {number} is {digest}, the image's configuration says {expected}")
            instruction = instructions[number] if number < len(instructions) else ""
            layers.append(ImageLayer(digest=digest, bytes=size, created_by=instruction))
    return Layout(config=config, layers=tuple(layers))


def read_image_file(exported: Path, path: str) -> bytes | None:
    """The content of one file of an exported image, from the topmost layer that has it; None if none has."""
    with _opened(exported) as (manifest, open_blob):
        for entry in reversed(manifest["layers"]):
            with _unpacked(open_blob(entry["digest"])) as stream, tarfile.open(fileobj=stream, mode="r:") as layer:
                for member in layer:
                    if member.name.removeprefix("./") == path and (content := layer.extractfile(member)):
                        return content.read()
    return None


# Opens a part of an image by its digest.
_OpenBlob = Callable[[str], IO[bytes]]


@contextmanager
def _opened(exported: Path) -> Iterator[tuple[dict[str, Any], _OpenBlob]]:
    """The manifest of an exported image, and its parts."""
    try:
        if exported.is_dir():
            manifest = json.loads((exported / "manifest.json").read_bytes())
            yield manifest, lambda digest: (exported / digest.partition(":")[2]).open("rb")
            return
        with tarfile.open(exported, mode="r:") as archive:

            def open_blob(digest: str) -> IO[bytes]:
                return _member(archive, f"blobs/{digest.replace(':', '/')}")

            yield _manifest(archive, open_blob, exported), open_blob
    except (OSError, tarfile.TarError, json.JSONDecodeError) as err:
        raise InputError(f"{exported}: not an image: {reason_of(err)}") from err


def _manifest(archive: tarfile.TarFile, open_blob: _OpenBlob, file: Path) -> dict[str, Any]:
    try:
        index = json.load(_member(archive, "index.json"))
        manifest: dict[str, Any] = json.loads(open_blob(index["manifests"][0]["digest"]).read())
        # This may be an index: of images for several platforms, or of an image and its attestation, whose platform is
        # `unknown`.
        if "manifests" in manifest:
            platforms = {item["digest"]: item.get("platform", {}).get("os") for item in manifest["manifests"]}
            digest = next(digest for digest, system in platforms.items() if system not in (None, "unknown"))
            manifest = json.loads(open_blob(digest).read())
        return manifest
    except (KeyError, IndexError, StopIteration, ValueError) as err:
        hint = "Docker writes one from version 25 on"
        raise InputError(f"{file}: not an OCI image layout: {err!r}", hint=hint) from err


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream


@contextmanager
def _unpacked(blob: IO[bytes]) -> Iterator[IO[bytes]]:
    """A layer's uncompressed tar; builders that store layers compressed also export them so."""
    with blob:
        magic = blob.read(2)
        blob.seek(0)
        if magic != b"\x1f\x8b":
            yield blob
            return
        with gzip.open(blob) as plain:
            yield cast(IO[bytes], plain)


def _measure_layer(stream: IO[bytes]) -> tuple[str, int]:
    """The digest and size of a layer's uncompressed tar."""
    sha256, size = hashlib.sha256(), 0
    while piece := stream.read(_PIECE):
        sha256.update(piece)
        size += len(piece)
    return f"sha256:{sha256.hexdigest()}", size
