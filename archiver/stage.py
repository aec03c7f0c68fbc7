"""What goes into a MAR besides the compiled model: handlers, entry module, labels, sample, TorchServe's file; and what
the record says of them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture

import handlers
from archiver.archive import ENTRY
from archiver.encoders import sample_body, stage_encoding
from archiver.graph import examples
from archiver.instructions import key_of
from archiver.lengths import of_length, sent, typical_length
from archiver.own import declared, example_body
from archiver.sources import Source
from config.content_types import CONTENT_TYPES
from config.errors import SourceError
from config.record import BodyFormat, Draft, MachineKey, Sample
from config.render import render_model_config
from config.sections import Image
from config.spec import Spec
from handlers.machine import machine_key
from handlers.request import JSON

BUILT_IN = {
    "image": ("handlers.image", "ImageHandler"),
    "tensor": ("handlers.tensor", "TensorHandler"),
    "text": ("handlers.generation", "TextHandler"),
}
# What `text` is where the model has a task.
ENCODER = ("handlers.encoder", "EncoderHandler")
# Of a MAR: what a user's own handler reads.
FILES = "files"
PROMPT = "Once upon a time"
_ENTRY_TEXT = '''"""What TorchServe imports: one class, because it takes exactly one that is defined in this file."""

from {module} import {name}


class Service({name}):
    pass
'''


def start_draft(spec: Spec, source: Source | None, folder: Path) -> Draft:
    """The record as far as it is known before anything is compiled; stages the files it names. A language model has no
    source: the files of its folder are packed as they are."""
    model, serving = spec.model, spec.serving
    forms = declared(spec)
    device = torch.device("cuda", 0) if spec.worker_device == "cuda" else torch.device("cpu")
    key = key_of(model.cpu_target, machine_key(device))
    if spec.vllm is not None:
        # Nothing is compiled here, and what vLLM computes on is asked where it is served.
        key |= {"device": serving.device, "isa": ()}
    draft = Draft(
        name=spec.name,
        version=spec.version,
        source=model.source,
        handler=_stage_code(spec, folder),
        precision=model.precision,
        compile=model.compile,
        on_mismatch=model.on_mismatch,
        device=serving.device,
        workers=spec.workers,
        threads=spec.threads,
        max_request_bytes=round(serving.max_request_mb * 1_000_000),
        max_response_bytes=round(serving.max_response_mb * 1_000_000),
        sample=_stage_sample(spec, source, forms.get("takes"), folder),
        key=MachineKey.model_validate(key),
        **forms,
    )
    if source is None:
        return draft
    return draft.model_copy(
        update={
            "weights": model.weights,
            "batch_sizes": model.batch_sizes,
            "image": source.image and _spelt_out(source.image),
            "inputs": source.inputs,
            "labels": _stage_labels(source, folder),
            "encoding": stage_encoding(spec, folder),
            "lengths": source.lengths,
        }
    )


def _spelt_out(image: Image) -> Image:
    """How pictures are read, with nothing left to a default that depends on other fields."""
    return image.model_copy(
        update={
            "mean": tuple(image.per_channel(image.mean)),
            "std": tuple(image.per_channel(image.std)),
            "resize": image.resize or max(image.height, image.width),
        }
    )


def _stage_code(spec: Spec, folder: Path) -> str:
    """The `handlers` package, the user's own handler if there is one, and the entry module; what `handler` is called
    in the record."""
    source = Path(handlers.__file__).parent
    shutil.copytree(source, folder / "handlers", ignore=shutil.ignore_patterns("__pycache__"))
    module, name = ENCODER if spec.model.task is not None else BUILT_IN.get(spec.model.handler, ("", ""))
    recorded = spec.model.handler
    if not module:
        file, _, name = spec.model.handler.partition(":")
        module = Path(file).stem
        recorded = f"{module}:{name}"
        shutil.copy(spec.path(file), folder / f"{module}.py")
        for extra in spec.model.files:
            (folder / FILES).mkdir(exist_ok=True)
            shutil.copyfile(spec.path(extra), folder / FILES / Path(extra).name)
    (folder / ENTRY).write_text(_ENTRY_TEXT.format(module=module, name=name), encoding="utf-8")
    (folder / "model-config.yaml").write_text(render_model_config(spec), encoding="utf-8")
    return recorded


def _stage_labels(source: Source, folder: Path) -> str | None:
    """`labels.txt`, when the model has labels."""
    if source.labels is None:
        return None
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in source.labels), encoding="utf-8")
    return "labels.txt"


def _stage_sample(spec: Spec, source: Source | None, takes: BodyFormat | None, folder: Path) -> Sample:
    """The spec's sample, or the example of what an own handler takes, or one made from the inputs; without a source it
    is a prompt."""
    if spec.load.sample is not None:
        file = spec.path(spec.load.sample)
        if not file.is_file():
            raise SourceError(f"{spec.file}: `load.sample`: no such file: `{file}`")
        suffix, data = file.suffix.lower(), file.read_bytes()
    elif spec.model.task is not None:
        suffix, data = ".json", sample_body(spec)
    elif takes is not None and takes.example is not None:
        name = "sample.json" if takes.content_type == JSON else "sample.txt"
        (folder / name).write_bytes(example_body(takes))
        return Sample(file=name, content_type=takes.content_type)
    elif source is None:
        suffix, data = ".json", json.dumps({"prompt": PROMPT, "max_tokens": 8, "temperature": 0}).encode()
    elif source.image is not None:
        suffix, data = ".png", _drawn(source)
    else:
        rows = of_length(source, examples(spec, source, 1), typical_length(source))
        named = {port.name: rows[place][0].tolist() for port, place in zip(source.inputs, sent(source), strict=True)}
        suffix, data = ".json", json.dumps(named).encode()
    (folder / f"sample{suffix}").write_bytes(data)
    return Sample(file=f"sample{suffix}", content_type=CONTENT_TYPES[suffix])


def _drawn(source: Source) -> bytes:
    """A picture of the model's size with a gradient in it."""
    height, width, channels = source.inputs[0].shape
    across = np.linspace(0, 255, width, dtype=np.uint8)
    pixels = np.broadcast_to(across[None, :, None], (height, width, channels))
    buffer = io.BytesIO()
    Picture.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels)).save(buffer, "PNG")
    return buffer.getvalue()
