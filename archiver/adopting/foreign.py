"""What an archive says about itself, in its manifest and its own model-config.yaml; and what of that Marina does not
run, each with one sentence that says what to do."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marina.archiver.archive import MANIFEST
from marina.archiver.import_names import needed_imports
from marina.archiver.inspecting import Archive, open_archive
from marina.archiver.inspecting.reading import READ_ERRORS
from marina.config.errors import ArchiveError

# TorchServe's own handlers, which a manifest may name, and the modules that a pod lacks for them.
NAMED_HANDLERS = ("base_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier")
_RUNTIMES = ("python", "python3")
_ONE_WORKER = "one worker answers one batch after another"
# Handlers and keys of model-config.yaml that need another server: what they are, and what to do.
_OTHERS = {
    "vllm": (
        "vLLM",
        "package the model's folder: `marina init mine --source hf:./folder`, with `text: {engine: vllm}`",
    ),
    "trt_llm": ("TensorRT-LLM", "serve the engine with Triton, or package the model's folder with `handler: text`"),
    "dali": ("DALI", "decode with Pillow in `preprocess`, or package the network with `handler: image`"),
}
_IMPORTS = {"vllm": "vllm", "tensorrt_llm": "trt_llm", "nvidia.dali": "dali"}


@dataclass(frozen=True)
class ForeignArchive:
    """An archive that was made for TorchServe."""

    path: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    """Its own model-config.yaml; empty if it has none."""
    sizes: Mapping[str, int]
    """Every file, with its size."""
    sources: Mapping[str, str]
    """Its Python files, with their text."""

    @property
    def model(self) -> Mapping[str, Any]:
        """The manifest's part about the model."""
        part: Mapping[str, Any] = self.manifest["model"]
        return part

    @property
    def name(self) -> str:
        return str(self.model.get("modelName") or self.path.name.partition(".")[0])

    @property
    def version(self) -> str:
        return str(self.model.get("modelVersion") or "1.0")

    @property
    def handler(self) -> str | None:
        """Its handler as the manifest names it: a file, `file:function`, or one of TorchServe's own."""
        return self.model.get("handler") or None

    @property
    def requirements(self) -> str | None:
        """Its file of requirements."""
        return self.model.get("requirementsFile") or None


def read_foreign(path: Path, where: str) -> ForeignArchive:
    """What is in an archive; ArchiveError, which begins with `where`, if it cannot be read or is not for Marina."""
    _refuse_workflow(path, where)
    with open_archive(path) as archive:
        if archive.damage:
            raise ArchiveError(f"{where}: {archive.damage[0]}", hint=f"marina inspect {path}")
        foreign = ForeignArchive(
            path,
            archive.manifest,
            _config(archive, where),
            dict(archive.sizes),
            {
                name: archive.read(name).decode("utf-8", "replace")
                for name in archive.sizes
                if name.endswith(".py") and not name.startswith("MAR-INF/")
            },
        )
    if reason := next(_refusals(foreign), None):
        text, hint = reason
        raise ArchiveError(f"{where}: `{path.name}` {text}", hint=hint)
    return foreign


def _refuse_workflow(path: Path, where: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(MANIFEST))
    except (*READ_ERRORS, ValueError):
        return
    if path.suffix == ".war" or (isinstance(manifest, dict) and "workflow" in manifest):
        text = f"{where}: `{path.name}` is a workflow, allowed: an archive with one model"
        raise ArchiveError(text, hint="adopt each of its models by itself, and let the client call one after the other")


def _config(archive: Archive, where: str) -> dict[str, Any]:
    name = archive.manifest["model"].get("configFile")
    if not name:
        return {}
    try:
        values = yaml.safe_load(archive.read(name))
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        text = f"{where}: `{name}` in `{archive.path.name}` is not YAML, so TorchServe could not start it either"
        raise ArchiveError(f"{text}: {str(err).splitlines()[0]}") from err
    return values if isinstance(values, dict) else {}


def _refusals(foreign: ForeignArchive) -> Iterator[tuple[str, str | None]]:
    config, runtime = foreign.config, str(foreign.manifest.get("runtime") or "python").lower()
    if runtime not in _RUNTIMES:
        yield f"is for the runtime `{runtime}`, allowed: `python`", "write its handler in Python"
    for needed in _foreign_servers(foreign):
        what, hint = _OTHERS[needed]
        yield f"needs {what}, which is a server of its own", hint
    parallel = str(config.get("parallelType") or "none").lower()
    if parallel != "none" or "torchrun" in config:
        key = "parallelType" if parallel != "none" else "torchrun"
        text = f"has `{key}`, which spreads a model over processes that torchrun starts; here, {_ONE_WORKER}"
        yield text, "a model that fits one GPU, or `marina init mine --source hf:./folder` with `text: {engine: vllm}`"
    if config.get("sequenceBatching"):
        text = f"has `sequenceBatching`, which keeps requests of a sequence together; here, {_ONE_WORKER}"
        yield text, "keep what a sequence needs in the client or in Redis, and delete `sequenceBatching`"
    if config.get("asyncCommunication"):
        text = f"has `asyncCommunication`, with which a worker answers out of order; here, {_ONE_WORKER}"
        yield text, "delete `asyncCommunication`, if its `handle` returns its answers"
    if config.get("continuousBatching"):
        text = "has `continuousBatching`, with which its handler is called for every step of open answers"
        language = "a language model's folder is served with as many: `marina init mine --source hf:./folder`"
        yield text, f"delete `continuousBatching`, if each call of its `handle` returns whole answers; {language}"


def _foreign_servers(foreign: ForeignArchive) -> Iterator[str]:
    handler = (foreign.handler or "").partition(":")[0].removesuffix(".py")
    file = handler.rpartition("/")[2]
    if f"{file}.py" not in foreign.sizes and file.split("_handler")[0].split("_image")[0] in _OTHERS:
        yield file.split("_handler")[0].split("_image")[0]
    if "dali" in foreign.config:
        yield "dali"
    for name, text in foreign.sources.items():
        for imported in needed_imports(text, Path(name).parent.parts):
            for module, needed in _IMPORTS.items():
                if f"{imported}.".startswith(f"{module}."):
                    yield needed
