"""Reads `image.json`, in which `marina image` recorded the image that it built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from config.errors import InputError
from config.record import Package
from config.spec import Spec

SCHEMA: Final = "marina.image/1"


class ImageRecord(BaseModel):
    """One built image. It has no digest until it was pushed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ref: str
    tag: str
    digest: str | None
    package_sha256: str | None
    target: Literal["cpu", "cuda", "loadtest", "vllm"]

    @property
    def reference(self) -> str:
        """The reference that pods use. It includes the digest if there is one, so that nobody can replace the image."""
        return f"{self.ref}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def read_image(folder: Path, spec: Spec, package: Package | None) -> ImageRecord | None:
    """Reads `image.json` in a build folder; None if there is none. Raises InputError if the image is for another device
    or contains another package."""
    file = folder / "image.json"
    image = _read(file, hint := f"marina image {spec.file}")
    if image is None:
        return None
    if image.target != spec.image_target:
        needed = "`text.engine` is `vllm`" if spec.vllm else f"`serving.device` is `{spec.serving.device}`"
        text = f"{file}: an image for `{image.target}`, but {needed}"
        raise InputError(text, hint=hint)
    if image.package_sha256 and package and image.package_sha256 != package.sha256:
        text = f"{file}: contains package {image.package_sha256[:12]}…, but packaged is {package.sha256[:12]}…"
        raise InputError(text, hint=hint)
    return image


def read_load_image(folder: Path, spec: Spec) -> ImageRecord | None:
    """Reads `image-loadtest.json` in a build folder; None if there is none."""
    return _read(folder / "image-loadtest.json", f"marina image {spec.file} --target loadtest")


def _read(file: Path, hint: str) -> ImageRecord | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.get("schema") != SCHEMA:
            raise InputError(f"{file}: got schema `{data.get('schema')}`, allowed: `{SCHEMA}`", hint=hint)
        return ImageRecord.model_validate(data)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as err:
        raise InputError(f"{file}: not an image record of this version", hint=hint) from err
