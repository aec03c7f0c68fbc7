"""Reads the records that other stages left as JSON in a build folder."""

import hashlib
import json
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from marina.config.errors import InputError
from marina.config.record import Package
from marina.config.spec import Spec


class RecordPart(BaseModel):
    """The part of a record that manifests need: its fields must be present, other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StageRecord(RecordPart):
    """A record with a file of its own."""

    sha256: str
    """The hash of the file."""


_Record = TypeVar("_Record", bound=StageRecord)


def read_stage_record(file: Path, model: type[_Record], kind: str, hint: str) -> _Record | None:
    """Reads a record of a kind such as `image`; None if there is no such file. Raises InputError with the hint if it
    cannot be read, or has another form or schema."""
    schema = f"marina.{kind}/1"
    try:
        content = file.read_bytes()
        data = json.loads(content)
        if data.get("schema") != schema:
            raise InputError(f"{file}: got schema `{data.get('schema')}`, allowed: `{schema}`", hint=hint)
        return model.model_validate({**data, "sha256": hashlib.sha256(content).hexdigest()})
    except FileNotFoundError:
        return None
    except OSError as err:
        raise InputError(f"{file}: cannot be read: {err.strerror}", hint=hint) from err
    except (ValueError, AttributeError, TypeError) as err:
        raise InputError(f"{file}: not an {kind} record of this version", hint=hint) from err


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
