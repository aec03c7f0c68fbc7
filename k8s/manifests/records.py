"""Reads the records of images in a build folder, and whether they belong to what is deployed."""

from pathlib import Path

from marina.config.distribution import distribution_version
from marina.config.errors import InputError
from marina.config.record import ImageRecord, Package, read_document
from marina.config.signatures import FOLDER as SIGNATURES
from marina.config.signatures import SUFFIX, check_signatures
from marina.config.spec import Spec


def read_image(folder: Path, spec: Spec, package: Package | None) -> ImageRecord | None:
    """Reads `image.json` in a build folder; None if there is none. Raises InputError if the image is for another device
    or registry, or contains another package."""
    file = folder / "image.json"
    image = read_document(file, ImageRecord, hint := f"marina image {spec.file}")
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
    libraries = package.record.requirements if package else None
    if libraries and image.requirements != libraries.digest:
        text = f"{file}: has not the libraries that the packaged handler brings"
        raise InputError(text, hint=f"{hint} --model-at-runtime" if image.package_sha256 is None else hint)
    return image


def read_signatures(folder: Path, spec: Spec, package: Package | None) -> dict[str, str]:
    """The signed statements that a pod demands, by file; empty if the spec has no `serving.verify`. ArchiveError if
    one is missing or does not count, as the pod would refuse it."""
    if spec.serving.verify is None:
        return {}
    if package is None:
        text = f"{spec.place('serving', 'verify')}: nothing was packaged yet that could be signed"
        raise InputError(text, hint=f"marina package {spec.file}")
    signed = folder / SIGNATURES
    check_signatures(spec, signed, package.sha256)
    names = ("package", "verdict") if spec.serving.verify.verdict else ("package",)
    return {f"{name}{SUFFIX}": (signed / f"{name}{SUFFIX}").read_text(encoding="utf-8") for name in names}


def load_image(folder: Path, spec: Spec) -> str:
    """The image that sends load and judges: by digest, if `marina image --target loadtest --push` recorded one."""
    hint = f"marina image {spec.file} --target loadtest"
    built = read_document(folder / "image-loadtest.json", ImageRecord, hint)
    return built.reference if built else f"{spec.kubernetes.registry}/marina-loadtest:{distribution_version()}"
