"""Reads `image.json`, in which `marina image` recorded the image that it built."""

from pathlib import Path
from typing import Literal

from config.errors import InputError
from config.record import Package
from config.spec import Spec
from k8s.manifests.records import StageRecord, read_stage_record


class ImageRecord(StageRecord):
    """One built image. It has no digest until it was pushed."""

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
    or registry, or contains another package."""
    file = folder / "image.json"
    image = read_stage_record(file, ImageRecord, "image", hint := f"marina image {spec.file}")
    if image is None:
        return None
    if image.target != spec.image_target:
        needed = "`text.engine` is `vllm`" if spec.vllm else f"`serving.device` is `{spec.serving.device}`"
        text = f"{file}: an image for `{image.target}`, but {needed}"
        raise InputError(text, hint=hint)
    registry = spec.kubernetes.registry
    if not image.ref.startswith(f"{registry}/"):
        raise InputError(f"{file}: `{image.ref}`, but `kubernetes.registry` is `{registry}`", hint=hint)
    if image.package_sha256 and package and image.package_sha256 != package.sha256:
        text = f"{file}: contains package {image.package_sha256[:12]}…, but the package is now {package.sha256[:12]}…"
        raise InputError(text, hint=hint)
    return image


def read_load_image(folder: Path, spec: Spec) -> ImageRecord | None:
    """Reads `image-loadtest.json` in a build folder; None if there is none."""
    hint = f"marina image {spec.file} --target loadtest"
    return read_stage_record(folder / "image-loadtest.json", ImageRecord, "image", hint)
