"""Stages everything in a MAR except the compiled model: handlers, entry module, labels, sample, TorchServe's file; and
starts the record."""

import io
import json
import shutil
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch
from PIL import Image as Picture

from marina import handlers
from marina.archiver.archive import ENTRY, PACKAGE_TEXT
from marina.archiver.cpu_target import artifact_key
from marina.archiver.encoders import sample_body, stage_encoding
from marina.archiver.fetching import pins_of
from marina.archiver.graph import activation, examples
from marina.archiver.lengths import cut_to_length, request_arguments, typical_length
from marina.archiver.own_handler import declared_forms, example_body
from marina.archiver.sources import Source
from marina.archiver.user_code import stage_modules
from marina.archiver.wav import sample_wav
from marina.config.errors import SourceError
from marina.config.hf_folder import pickled_weights
from marina.config.record import (
    Adopted,
    Artifact,
    BodyFormat,
    Code,
    Draft,
    Lengths,
    MachineKey,
    PackedImage,
    Port,
    Sample,
    Sound,
    Writing,
)
from marina.config.render import render_model_config
from marina.config.request_headers import CONTENT_TYPES
from marina.config.requirements import Requirements
from marina.config.sections import Detection, Image
from marina.config.spec import Spec
from marina.handlers.machine import machine_key
from marina.handlers.request import JSON

BUILT_IN = {
    "archive": ("marina.handlers.archive", "ArchiveHandler"),
    "audio": ("marina.handlers.sound.handler", "SoundHandler"),
    "image": ("marina.handlers.image", "ImageHandler"),
    "tensor": ("marina.handlers.tensor", "TensorHandler"),
    "text": ("marina.handlers.generation.handler", "TextHandler"),
}
# The handler that `text` means if the model has a task.
ENCODER = ("marina.handlers.encoder", "EncoderHandler")
# The handlers that `image` means if the task is not to classify; an embedding is answered as it is.
OF_PICTURES = {
    "detect": ("marina.handlers.detection", "DetectionHandler"),
    "segment": ("marina.handlers.segmentation", "SegmentationHandler"),
}
# The folder in a MAR with the files that a user's own handler reads.
FILES = "files"
PROMPT = "Once upon a time"
_ENTRY_TEXT = '''"""TorchServe imports this module, and takes the one class that is defined in it."""

from marina.handlers.memory import made_to_stay

with made_to_stay():
    from {module} import {name}


class Service({name}):
    pass
'''


def start_draft(spec: Spec, source: Source | None, folder: Path) -> Draft:
    """Stages the code, the labels and the sample, and returns the record as far as it is known before compiling. A
    language model has no source, because its files are packed unchanged."""
    model, serving = spec.model, spec.serving
    takes, gives = declared_forms(spec)
    return Draft(
        name=spec.name,
        version=spec.version,
        source=model.source,
        weights=_weights(spec, source),
        pins=pins_of(spec),
        handler=_stage_code(spec, folder),
        precision=model.precision,
        compile=model.compile,
        device=serving.device,
        workers=spec.workers,
        threads=spec.threads,
        batch_sizes=model.batch_sizes if source else (),
        image=_explicit_image(spec, source.image) if source and source.image else None,
        inputs=source.inputs if source else (),
        labels=_stage_labels(source, folder) if source else None,
        lengths=source.lengths if source else None,
        encoding=stage_encoding(spec, folder),
        max_request_bytes=round(serving.max_request_mb * 1_000_000),
        max_response_bytes=spec.max_response_bytes,
        sample=_stage_sample(spec, source, takes, folder),
        key=_key(spec),
        takes=takes,
        gives=gives,
        trust_pickle=model.trust_pickle,
    )


def _weights(spec: Spec, source: Source | None) -> str | None:
    """The spec's `model.weights`, or the file in a folder if that is a pickle."""
    if source is None and not spec.model.listens:
        return None
    folder = spec.model.folder
    return spec.model.weights if folder is None else pickled_weights(spec.path(folder))


def _built_in(spec: Spec) -> tuple[str, str] | None:
    """The module and name of Marina's own handler that the spec asks for; None for one of the user's."""
    model = spec.model
    if model.encodes:
        return ENCODER
    return OF_PICTURES.get(str(model.task)) if model.task in OF_PICTURES else BUILT_IN.get(model.handler)


class DraftFields(TypedDict, total=False):
    """The fields of a draft that are only known once the model was loaded or compiled."""

    outputs: tuple[Port, ...]
    artifacts: tuple[Artifact, ...]
    program: str
    cache: str
    code: Code
    text: Writing
    archive: Adopted
    requirements: Requirements | None
    batch_sizes: tuple[int, ...]
    inputs: tuple[Port, ...]
    labels: str
    lengths: Lengths
    sound: Sound


def extend_draft(draft: Draft, **fields: Unpack[DraftFields]) -> Draft:
    """A copy of the draft with these fields set."""
    return draft.model_copy(update={**fields})


def _key(spec: Spec) -> MachineKey:
    device = torch.device("cuda", 0) if spec.worker_device == "cuda" else torch.device("cpu")
    key = artifact_key(spec.model.cpu_target, machine_key(device))
    if spec.vllm is not None:
        # Nothing is compiled here: vLLM checks the machine that it serves on.
        key |= {"device": spec.serving.device, "isa": ()}
    return MachineKey.model_validate(key)


def _explicit_image(spec: Spec, image: Image) -> PackedImage:
    """How pictures are read and answered, without defaults that depend on other fields."""
    explicit = {
        "mean": tuple(image.per_channel(image.mean)),
        "std": tuple(image.per_channel(image.std)),
        "resize": image.resize or max(image.height, image.width),
        "activation": activation(spec),
    }
    if spec.model.task is not None:
        explicit |= {"task": spec.model.task, "detection": spec.model.detection, "mask_size": spec.model.mask_size}
    if spec.model.task == "detect":
        explicit["detection"] = spec.model.detection or Detection()
    return PackedImage(**image.model_dump() | explicit)


def _stage_code(spec: Spec, folder: Path) -> str:
    """Stages the `handlers` package, the user's own handler if there is one, and the entry module; returns the record's
    `handler`."""
    package = Path(handlers.__file__).parent
    (folder / "marina").mkdir()
    (folder / "marina" / "__init__.py").write_text(PACKAGE_TEXT, encoding="utf-8")
    shutil.copytree(package, folder / "marina" / "handlers", ignore=shutil.ignore_patterns("__pycache__"))
    module, name = _built_in(spec) or ("", "")
    recorded = spec.model.handler
    if not module:
        file, _, name = spec.model.handler.partition(":")
        module = stage_modules(spec, spec.path(file), "model.handler", folder).removesuffix(".py").replace("/", ".")
        recorded = f"{module}:{name}"
        for extra in spec.model.files:
            (folder / FILES).mkdir(exist_ok=True)
            shutil.copyfile(spec.path(extra), folder / FILES / Path(extra).name)
    (folder / ENTRY).write_text(_ENTRY_TEXT.format(module=module, name=name), encoding="utf-8")
    (folder / "model-config.yaml").write_text(render_model_config(spec), encoding="utf-8")
    return recorded


def _stage_labels(source: Source, folder: Path) -> str | None:
    """Writes `labels.txt` if the model has labels; returns the record's `labels`."""
    if source.labels is None:
        return None
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in source.labels), encoding="utf-8")
    return "labels.txt"


def _stage_sample(spec: Spec, source: Source | None, takes: BodyFormat | None, folder: Path) -> Sample:
    """Stages the spec's sample, the example that an own handler declares, or a generated request: a picture, tensors,
    or a prompt for a language model."""
    if spec.load.sample is not None:
        file = spec.path(spec.load.sample)
        if not file.is_file():
            raise SourceError(f"{spec.file}: `load.sample`: no such file: `{file}`")
        assert spec.sample_type is not None, "a rule of the spec"
        name = f"sample{file.suffix.lower()}"
        (folder / name).write_bytes(file.read_bytes())
        return Sample(file=name, content_type=spec.sample_type)
    if spec.model.listens:
        suffix, data = ".wav", sample_wav()
    elif spec.model.encodes:
        suffix, data = ".json", sample_body(spec)
    elif takes is not None and takes.example is not None:
        name = "sample.json" if takes.content_type == JSON else "sample.txt"
        (folder / name).write_bytes(example_body(takes))
        return Sample(file=name, content_type=takes.content_type)
    elif source is None:
        suffix, data = ".json", json.dumps({"prompt": PROMPT, "max_tokens": 8, "temperature": 0}).encode()
    elif source.image is not None:
        suffix, data = ".png", _gradient(source)
    else:
        rows = cut_to_length(source, examples(spec, source, 1), typical_length(source))
        pairs = zip(source.inputs, request_arguments(source), strict=True)
        suffix, data = ".json", json.dumps({port.name: rows[place][0].tolist() for port, place in pairs}).encode()
    (folder / f"sample{suffix}").write_bytes(data)
    return Sample(file=f"sample{suffix}", content_type=CONTENT_TYPES[suffix])


def _gradient(source: Source) -> bytes:
    """A PNG of the model's input size with a gradient in it."""
    height, width, channels = source.inputs[0].shape
    across = np.linspace(0, 255, width, dtype=np.uint8)
    pixels = np.broadcast_to(across[None, :, None], (height, width, channels))
    buffer = io.BytesIO()
    Picture.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels)).save(buffer, "PNG")
    return buffer.getvalue()
