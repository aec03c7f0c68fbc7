"""`marina image`: builds the image of a spec's package with whichever container builder is installed, and records it.

Nothing here imports torch, because a machine with a builder need not be one that compiles models."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGTERM

from marina.archiver.containers.bill import with_libraries
from marina.archiver.containers.builders import Builder, BuildRequest, Command, find_builder
from marina.archiver.containers.context import build_context, find_clone
from marina.archiver.containers.layers import Layout, read_image_file, read_layout
from marina.config.distribution import distribution_version
from marina.config.errors import InputError, Refused, listed
from marina.config.machine import end_with_parent
from marina.config.progress import Progress
from marina.config.record import ImageRecord, ImageTarget, Package, check_mar, read_package, write_json, write_text
from marina.config.requirements import IMAGE_PYTHON, WHEELS, Requirements, install
from marina.config.spec import Spec

BASE = "docker.io/library/python:3.11-slim-bookworm"
BOM = "opt/marina/bom.json"
# 1980-01-01, as in the MAR and in docker/install.py: equal inputs give equal layers, whenever they are built.
_EPOCH = 315532800
_ARGUMENTS = ("BUILD_BASE", "TORCH_INDEX")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageOptions:
    """The choices that the command line offers for an image."""

    target: ImageTarget | None = None
    """Default: the one that the spec needs."""
    builder: str | None = None
    base: str = BASE
    base_digest: str | None = None
    wheels: Path | None = None
    """A folder of wheels to install from, instead of a package index."""
    pip_conf: Path | None = None
    tag: str | None = None
    """Default: the spec's version, followed by the target if that is not the one the spec needs."""
    build_arg: tuple[str, ...] = ()
    """`NAME=VALUE` for the Dockerfile."""
    model_at_runtime: bool = False
    push: bool = False


def build_image(spec: Spec, folder: Path, options: ImageOptions, *, progress: Progress) -> ImageRecord:
    """Builds the image of the package in `folder` (`build/<name>`), and writes its record and bill of materials
    there."""
    target: ImageTarget = options.target or spec.image_target
    package = None if target == "loadtest" or options.model_at_runtime else _checked_package(spec, folder, target)
    libraries = None if target == "loadtest" else _libraries(spec, folder)
    _check_options(options)
    builder = find_builder(options.builder)
    ref, tag = image_reference(spec, target, options)
    stem = "image" if target == spec.image_target else f"image-{target}"
    base = options.base if options.base_digest is None else f"{_without_tag(options.base)}@{options.base_digest}"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{stem}.log"
    with _staged_contexts(spec, folder, package, libraries, options.wheels) as (code, contexts):
        request = BuildRequest(
            context=code,
            target=target,
            reference=f"{ref}:{tag}",
            epoch=_EPOCH,
            arguments={
                "BASE": base,
                **_extras(spec, target),
                **dict(argument.split("=", 1) for argument in options.build_arg),
            },
            contexts={name: path for name, path in contexts.items() if name != "package" or target != "loadtest"},
            labels=_labels(spec, target, package, options),
            pip_conf=options.pip_conf,
        )
        with progress.step(f"build {target} with {builder.name}"):
            _run(builder.build(request), log)
    layout = _measure(builder, request.reference, folder, stem, libraries, progress, log)
    record = ImageRecord(
        ref=ref,
        tag=tag,
        digest=_push(builder, request.reference, folder, progress, log) if options.push else None,
        package_sha256=package.sha256 if package else None,
        requirements=libraries.digest if libraries else None,
        target=target,
        base=base,
        builder=f"{builder.name} {builder.version}",
        layers=layout.layers,
        bytes=layout.bytes,
    )
    write_json(folder / f"{stem}.json", record.to_data())
    return record


def _checked_package(spec: Spec, folder: Path, target: ImageTarget) -> Package:
    """The package in the folder. Raises InputError unless it is the spec's, undamaged, and can run in this image."""
    package = read_package(folder)
    record, again = package.record, f"marina package {spec.file}"
    if (record.name, record.version) != (spec.name, spec.version):
        text = f"{folder / 'package.json'}: it is the package of `{record.name}` {record.version}, but the spec is of "
        raise InputError(text + f"`{spec.name}` {spec.version}", hint=again)
    if target == "vllm" and record.device == "cpu":
        text = f"{folder / 'package.json'}: `serving.device` is `cpu`, but the image `vllm` contains a vLLM for GPUs"
        raise InputError(text, hint="device: cuda, or an image of your own with vLLM at `text.vllm.python`")
    made_for = "vllm" if record.text and record.text.engine == "vllm" else record.device
    if made_for != target:
        text = f"`--target`: got `{target}`, but the package is for `{made_for}`"
        raise InputError(text, hint=f"--target {made_for}, or --model-at-runtime")
    if record.compile == "jit":
        why = "`model.compile` is `jit`, which compiles while serving, but images contain no compiler"
        raise InputError(f"{folder / 'package.json'}: {why}", hint="compile: aot")
    check_mar(folder, package, again)
    return package


def _libraries(spec: Spec, folder: Path) -> Requirements | None:
    """The libraries that the packaged handler brings. They are in the image even if the model is not."""
    if not (folder / "package.json").exists() and not spec.model.requirements:
        return None  # the image of `--model-at-runtime` is the same for all such models
    libraries = read_package(folder).record.requirements
    python = ".".join(map(str, IMAGE_PYTHON))
    if libraries and libraries.python != python:
        text = f"{folder / WHEELS}: resolved for Python {libraries.python}, but images have Python {python}"
        raise InputError(text, hint=f"with Python {python}: marina package {spec.file}")
    return libraries


def _check_options(options: ImageOptions) -> None:
    if options.base_digest is not None and not _DIGEST.fullmatch(options.base_digest):
        raise InputError(f"`--base-digest`: got `{options.base_digest}`, allowed: `sha256:` and 64 hexadecimal digits")
    for argument in options.build_arg:
        if argument.partition("=")[0] not in _ARGUMENTS or "=" not in argument:
            allowed = listed(f"{name}=…" for name in _ARGUMENTS)
            raise InputError(f"`--build-arg`: got `{argument}`, allowed: {allowed}")
    if options.wheels is not None and not any(options.wheels.glob("*.whl")):
        raise InputError(f"`--wheels`: no wheels in `{options.wheels}`", hint="make wheels, in Marina's repository")
    if options.pip_conf is not None and not options.pip_conf.is_file():
        raise InputError(f"`--pip-conf`: no such file: {options.pip_conf}")


def image_reference(spec: Spec, target: ImageTarget, options: ImageOptions) -> tuple[str, str]:
    """The image's repository and tag. The load generator's image is the same for every model. An image for a target
    other than the spec's must not get the tag of the image that serves the spec."""
    if target == "loadtest":
        return f"{spec.kubernetes.registry}/marina-loadtest", options.tag or distribution_version()
    tag = spec.version if target == spec.image_target else f"{spec.version}-{target}"
    return f"{spec.kubernetes.registry}/{spec.name}", options.tag or tag


@contextmanager
def _staged_contexts(
    spec: Spec, folder: Path, package: Package | None, libraries: Requirements | None, wheels: Path | None
) -> Iterator[tuple[Path, dict[str, Path]]]:
    """The build contexts: Marina's code, and by name the wheels, and the package as the image will contain it, with
    fixed modes and times."""
    with tempfile.TemporaryDirectory(prefix=".image-", dir=folder) as temporary:
        code = build_context(Path(temporary).resolve() / "code")
        staged = Path(temporary).resolve() / "package"
        (staged / "config").mkdir(parents=True)
        (staged / "model").mkdir()
        (staged / "requirements").mkdir()
        shutil.copyfile(spec.file, staged / "config" / "spec.yaml")
        if package:
            shutil.copyfile(folder / package.mar, staged / "model" / "model.mar")
        if libraries:
            hint = f"marina package {spec.file}"
            install(libraries, folder / WHEELS, staged / "requirements" / libraries.digest, hint=hint)
        for path in sorted(staged.rglob("*"), reverse=True):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (_EPOCH, _EPOCH))
        yield code, {"package": staged} | ({"wheels": wheels.resolve()} if wheels else {})


def _extras(spec: Spec, target: ImageTarget) -> dict[str, str]:
    """What the image has on top because the spec needs it."""
    return {"MORE_EXTRAS": "tracing"} if spec.tracing and target != "loadtest" else {}


def _labels(spec: Spec, target: ImageTarget, package: Package | None, options: ImageOptions) -> dict[str, str]:
    """The image's labels, with the OCI's names where it has one. The build time is left out, because it would make
    equal images differ."""
    oci, server = "org.opencontainers.image.", target != "loadtest"
    labels = {
        oci + "title": spec.name if server else "marina-loadtest",
        oci + "description": "A model served by TorchServe under Marina" if server else "Marina's load generator",
        oci + "version": spec.version if server else distribution_version(),
        oci + "base.name": options.base,
        "marina.version": distribution_version(),
    }
    if options.base_digest:
        labels[oci + "base.digest"] = options.base_digest
    if revision := _revision():
        labels[oci + "revision"] = revision
    if package:
        labels["marina.package.sha256"] = package.sha256
    return labels


def _revision() -> str | None:
    """The commit of the code in the image, with `-dirty` if there are uncommitted changes; None outside a clone."""
    if (clone := find_clone()) is None:
        return None  # `git` would find a repository that an environment with Marina lies in
    git = ("git", "-C", str(clone))
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if changes else "")


def _measure(
    builder: Builder,
    reference: str,
    folder: Path,
    stem: str,
    libraries: Requirements | None,
    progress: Progress,
    log: Path,
) -> Layout:
    """Measures the image's layers, and copies its bill of materials to the folder, with the handler's libraries."""
    with tempfile.TemporaryDirectory(prefix=".image-", dir=folder) as temporary, progress.step("measure the layers"):
        exported = Path(temporary) / "image"
        _run(builder.export(reference, exported), log)
        layout = read_layout(exported)
        bom = read_image_file(exported, BOM)
    if bom is None:
        raise Refused(f"{reference}: contains no `/{BOM}`")
    text = bom.decode() if libraries is None else with_libraries(json.loads(bom), libraries)
    write_text(folder / ("bom.json" if stem == "image" else f"bom-{stem.removeprefix('image-')}.json"), text)
    return layout


def _push(builder: Builder, reference: str, folder: Path, progress: Progress, log: Path) -> str:
    with tempfile.TemporaryDirectory(prefix=".image-", dir=folder) as temporary, progress.step("push"):
        digest = Path(temporary) / "digest"
        _run(builder.push(reference, digest), log, lambda output: builder.push_hint(reference, output))
        return builder.pushed_digest(reference, digest)


def _run(command: Command, log: Path, hint: Callable[[str], str | None] = lambda _: None) -> None:
    """Runs a builder with its output in a log file; if it fails, the error shows the last lines."""
    with log.open("w", encoding="utf-8") as stream:
        code = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, check=False, preexec_fn=partial(end_with_parent, SIGTERM)
        ).returncode
    if code:
        output = log.read_text(encoding="utf-8", errors="replace").strip()
        lines = [f"`{command[0]}` failed with exit code {code}:", *output.splitlines()[-12:]]
        raise Refused("\n  ".join(lines), hint=hint(output) or f"see {log}")


def _without_tag(reference: str) -> str:
    """The reference without its tag or digest; a colon before the last slash is the registry's port."""
    head, slash, name = reference.rpartition("/")
    return f"{head}{slash}{name.partition('@')[0].partition(':')[0]}"
