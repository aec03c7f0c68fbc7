"""Reads an image from a tar file with an OCI layout: its layers, their sizes, and single files in them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from config.errors import InputError

_PIECE = 1 << 20
# What builders add around an instruction of the Dockerfile.
_NOISE = re.compile(r"^/bin/sh -c (#\(nop\) *)?|(?<= )(dir|file|multi):[0-9a-f]{64} in | # buildkit$")


@dataclass(frozen=True)
class Layer:
    """One uncompressed layer, so that the builder's or registry's compression does not matter."""

    digest: str
    """The sha256 of the uncompressed tar, which is the image's `diff_id`."""
    bytes: int
    """The size of the uncompressed tar."""
    created_by: str
    """The instruction that created it."""


@dataclass(frozen=True)
class Layout:
    """The image in a tar file: its configuration, and its layers from the base upwards."""

    config: dict[str, Any]
    layers: tuple[Layer, ...]

    @property
    def bytes(self) -> int:
        """The uncompressed size of all layers."""
        return sum(layer.bytes for layer in self.layers)


def read_layout(file: Path) -> Layout:
    """Reads the image in a tar file; InputError if it is not an image, or if a layer does not have the configured
    digest."""
    with _opened(file) as archive:
        manifest, config_name = _manifest(archive, file)
        config = json.loads(_blob(archive, config_name).read())
        history = [entry for entry in config.get("history", []) if not entry.get("empty_layer")]
        instructions = [_NOISE.sub("", entry.get("created_by", "")).strip() for entry in history]
        digests, layers = config["rootfs"]["diff_ids"], []
        for number, (entry, expected) in enumerate(zip(manifest["layers"], digests, strict=True)):
            digest, size = _measure_layer(archive, entry["digest"])
            if digest != expected:
                raise InputError(f"{file}: layer {number} is {digest}, the image's configuration says {expected}")
            layers.append(Layer(digest, size, instructions[number] if number < len(instructions) else ""))
    return Layout(config=config, layers=tuple(layers))


def read_image_file(file: Path, path: str) -> bytes | None:
    """The content of one file of the image in a tar file, from the topmost layer that has it; None if none has."""
    with _opened(file) as archive:
        manifest, _ = _manifest(archive, file)
        for entry in reversed(manifest["layers"]):
            with _unpacked(archive, entry["digest"]) as stream, tarfile.open(fileobj=stream, mode="r:") as layer:
                for member in layer:
                    if member.name.removeprefix("./") == path and (content := layer.extractfile(member)):
                        return content.read()
    return None


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, mode="r:") as archive:
            yield archive
    except (OSError, tarfile.TarError) as err:
        raise InputError(f"{file}: not an image: {err}") from err


def _manifest(archive: tarfile.TarFile, file: Path) -> tuple[dict[str, Any], str]:
    try:
        index = json.load(_member(archive, "index.json"))
        digest = index["manifests"][0]["digest"]
        manifest = json.loads(_blob(archive, digest).read())
        # This may be an index: of images for several platforms, or of an image and its attestation, whose platform is
        # `unknown`.
        if "manifests" in manifest:
            platforms = {item["digest"]: item.get("platform", {}).get("os") for item in manifest["manifests"]}
            digest = next(digest for digest, system in platforms.items() if system not in (None, "unknown"))
            manifest = json.loads(_blob(archive, digest).read())
        return manifest, manifest["config"]["digest"]
    except (KeyError, IndexError, StopIteration, ValueError) as err:
        hint = "Docker writes one from version 25 on"
        raise InputError(f"{file}: not an OCI image layout: {err!r}", hint=hint) from err


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream


def _blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    return _member(archive, f"blobs/{digest.replace(':', '/')}")


@contextmanager
def _unpacked(archive: tarfile.TarFile, digest: str) -> Iterator[IO[bytes]]:
    """A layer's uncompressed tar; builders that store layers compressed also export them so."""
    with _blob(archive, digest) as stream:
        magic = stream.read(2)
        stream.seek(0)
        if magic != b"\x1f\x8b":
            yield stream
            return
        with gzip.open(stream) as plain:
            yield cast(IO[bytes], plain)


def _measure_layer(archive: tarfile.TarFile, digest: str) -> tuple[str, int]:
    """The digest and size of a layer's uncompressed tar."""
    sha256, size = hashlib.sha256(), 0
    with _unpacked(archive, digest) as stream:
        while piece := stream.read(_PIECE):
            sha256.update(piece)
            size += len(piece)
    return f"sha256:{sha256.hexdigest()}", size
