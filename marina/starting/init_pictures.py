"""Chooses the handler, the task and the preprocessing of a model that may take pictures: from what its files say, or
from the options; what neither says is an error with the options to type."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from marina.config.errors import InputError, listed
from marina.starting.init_scaling import picture_options, refuse_picture_options, with_image
from marina.starting.init_spec import ModelFacts, flow_yaml

_PICTURE_TASKS = ("classify", "detect", "embed", "segment")
_FIELDS = ("activation", "detection", "image", "outputs")


def takes_pictures(network: Any) -> bool:
    """Whether its first layer that says so is for pictures."""
    from torch import nn

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.EmbeddingBag, nn.RNNBase)
    return isinstance(next((layer for layer in network.modules() if isinstance(layer, kinds)), None), nn.Conv2d)


def choose_handler(facts: ModelFacts, options: argparse.Namespace, network: Any) -> ModelFacts:
    """The facts with a handler for pictures, texts or tensors: what the options ask for, or what fits the model."""
    picture, handler, given = _picture(facts), options.handler, parse_lines(options.set or [])
    if options.template == "text":
        _check_reads_words(facts)
        return replace(facts, handler="own", template="text", files=("./words.txt",))
    is_asked = handler == "image" or options.task is not None
    if picture is None and is_asked:
        asked = "--handler" if handler == "image" else "--task"
        shown = ", ".join(f"{key} {tensor.get('shape')}" for key, tensor in (facts.inputs or {}).items())
        text = f"`{asked}`: got `{options.task or handler}`, but the model takes {shown}, allowed: 1 or 3 channels,"
        name = next(iter(facts.inputs or {}))
        raise InputError(f"{text} rows, columns", hint=f"--handler tensor, or --input {name}:float32:3,224,224")
    # A program may expect pictures scaled in any way, so it gets them only if the user asks for that.
    may_be_picture = not facts.source.endswith(".pt2") or is_asked or handler == "own"
    if picture is None or handler == "tensor" or not may_be_picture:
        if given:
            raise InputError(f"`--set`: got `{next(iter(given))}`, allowed only for pictures", hint="--task classify")
        refuse_picture_options(options, f"`handler` is `{handler or 'tensor'}`")
        return replace(facts, handler=handler or "tensor")
    return _of_pictures(facts, options, network, picture, given)


def _of_pictures(
    facts: ModelFacts,
    options: argparse.Namespace,
    network: Any,
    picture: tuple[int, int, int],
    given: dict[str, Any],
) -> ModelFacts:
    import torch

    from marina.archiver.meaning import Unsaid, meaning_of_task, read_meaning, trace
    from marina.archiver.yolo import other_class

    if (kind := other_class(network)) and options.handler != "own":
        text = f"`--source`: a `{kind}` of ultralytics, of whose kinds only the `DetectionModel` has a task here"
        raise InputError(text, hint="--handler own, or --handler tensor for the numbers that it returns")
    pictures = torch.rand(facts.only_batch or 2, *picture, generator=torch.Generator().manual_seed(0))
    traced = trace(network, pictures, facts.outputs)
    read = read_meaning(traced) if options.task is None else meaning_of_task(traced, options.task)
    if options.handler == "own":
        classifies = getattr(read, "task", None) == "classify"
        facts, _ = with_image(facts, network, picture, given, options, squash=False)
        return replace(facts, handler="own", inputs=None, top_k=5 if classifies else 0)
    if isinstance(read, Unsaid) and not _settles(given, read):
        raise InputError(f"`--source`: {read.why}", hint=read.hint)
    if read is None:
        if options.handler == "image":
            returned = ", ".join(map(str, map(list, facts.shapes)))
            text = f"`--handler`: got `image`, but no task of pictures has outputs {returned}"
            raise InputError(text, hint="--handler tensor, or --handler own")
        refuse_picture_options(options, "no task of pictures has its outputs")
        return replace(facts, handler="tensor")
    task = "detect" if isinstance(read, Unsaid) else read.task
    facts, said = with_image(facts, network, picture, given, options, squash=task in ("detect", "segment"))
    notes = [*facts.notes]
    if isinstance(read, Unsaid):
        meaning = replace(facts, task="detect")
    else:
        meaning = replace(
            facts,
            task=read.task,
            activation=read.activation,
            outputs=read.outputs or facts.outputs,
            detection=dict(read.detection) if read.detection else None,
        )
        notes.append(f"`task` is `{read.task}`: {read.said_by} says so")
    notes.append(f"pictures are scaled and normalised {said}")
    fields = {key: value for key, value in given.items() if key != "image"}
    if "outputs" in fields:
        fields["outputs"] = tuple(fields["outputs"])
    return replace(meaning, handler="image", inputs=None, notes=notes, **fields)


def facts_of_picture_folder(source: str, folder: str, options: argparse.Namespace) -> ModelFacts:
    """The facts of a model of pictures in a folder, which says all of them itself."""
    from marina.config.picture_folder import PictureFolderRefused, read_picture_folder

    given = parse_lines(options.set or [])
    try:
        read = read_picture_folder(Path(folder))
    except PictureFolderRefused as err:
        raise InputError(f"`--source`: {err}", hint=err.hint) from err
    task = options.task or read.made_for
    if task not in _PICTURE_TASKS:
        text = f"`--source`: no task of pictures does what `{read.architecture}` was made for"
        raise InputError(text, hint="--task embed, for a vector of each picture")
    activation = None if task == "embed" or task != read.made_for else read.activation
    if task == "detect" and activation is None and not {"activation", "detection"} <= given.keys():
        kind = read.config.get("model_type")
        text = f"`--source`: nothing says what makes scores of the numbers of a `{kind}`"
        hint = "--set 'activation: sigmoid' --set 'detection: {boxes: cxcywh, unit: fraction}'"
        raise InputError(text, hint=hint)
    _add_image(given, read.config, options)
    facts = ModelFacts(source, "image", task=task, activation=activation, detection=read.detection, picture=(3, 1, 1))
    facts = replace(facts, **given)
    loaded = _load(replace(facts, source=f"hf:{folder}"))
    image = loaded.image
    facts = replace(facts, picture=(image.channels, image.height, image.width), image_said="as its folder says")
    notes = [f"`task` is `{task}`" + (f": its class is `{read.architecture}`" if options.task is None else "")]
    if (Path(folder) / "tokenizer.json").is_file():
        notes.append("it takes pictures: `--handler text` serves its part for texts, whose vectors lie beside theirs")
    return replace(facts, notes=[*notes, *loaded.notes])


def _add_image(given: dict[str, Any], config: dict[str, Any], options: argparse.Namespace) -> None:
    """Adds what the options say of pictures. It replaces all that the folder says of them, and so has their size."""
    own = picture_options(options, config.get("num_channels", 3)) | (given.get("image") or {})
    if not own:
        return
    side = config.get("image_size")
    sides = side if isinstance(side, (list, tuple)) else (side, side)
    size = dict(zip(("height", "width"), sides, strict=False)) if side else {}
    given["image"] = own = size | own
    if not {"height", "width"} <= own.keys():
        hint = "--set 'image: {height: 224, width: 224}', with the size that the model takes, beside the other options"
        raise InputError("`--set`: `image`: missing: `height` and `width`", hint=hint)
    if missing := [f"--{option}" for option, key in (("fit", "fit"), ("normalize", "mean")) if key not in own]:
        hint = " ".join({"--fit": "--fit squash", "--normalize": "--normalize 0.5/0.5"}[option] for option in missing)
        text = f"missing: {listed(missing)}: of pictures, options replace all that the folder says"
        raise InputError(f"`--source`: {text}", hint=hint)


def _load(facts: ModelFacts) -> Any:
    from marina.archiver.sources import load_source
    from marina.config.load import parse_spec
    from marina.starting.init_spec import spec_text

    return load_source(parse_spec(spec_text("mine", facts, "sample.png"), Path("spec.yaml"), files=False))


def other_task(name: str) -> tuple[str, str] | None:
    """Why a model of torchvision is not served by its name, and what to do: None if it classifies pictures."""
    if re.match(r"(fasterrcnn|fcos|keypointrcnn|maskrcnn|retinanet|ssd|ssdlite)", name):
        text = "answers another number of boxes for each picture, by operators of torchvision's own, which a pod lacks"
        return text, "a detector of transformers, such as YOLOS or RT-DETR: --source hf:OWNER/NAME"
    if re.match(r"(deeplabv3|fcn|lraspp)", name):
        made = f"def build(): return torchvision.models.get_model('{name}', weights=None, weights_backbone=None)"
        return "makes masks, for which it takes several sizes", f"in model.py: `{made}`, then --source ./model.py:build"
    if re.match(r"(mc3|mvit|r2plus1d|r3d|s3d|swin3d)", name):
        made = f"def build(): return torchvision.models.get_model('{name}')"
        return "takes clips, not pictures", f"in model.py: `{made}`, then --source ./model.py:build --handler tensor"
    return None


def _settles(given: dict[str, Any], unsaid: Any) -> bool:
    """Whether the lines that the user gives say what nothing else says."""
    needed = {option.removeprefix("--set '").partition(":")[0] for option in unsaid.options if "--set" in option}
    return bool(needed) and needed <= given.keys()


def parse_lines(lines: list[str]) -> dict[str, Any]:
    """The fields in lines such as `activation: sigmoid`."""
    fields: dict[str, Any] = {}
    for line in lines:
        try:
            data = yaml.safe_load(line)
        except yaml.YAMLError:
            data = None
        if not isinstance(data, dict) or not data.keys() <= {*_FIELDS}:
            text = f"`--set`: got `{line}`, allowed: `FIELD: VALUE` with one of {listed(_FIELDS)}"
            raise InputError(text, hint="--set 'activation: sigmoid'")
        fields |= data
    return fields


def _picture(facts: ModelFacts) -> tuple[int, int, int] | None:
    """The channels, rows and columns of the model's only input, if that may be a picture."""
    inputs = list((facts.inputs or {}).values())
    shape = inputs[0].get("shape", []) if len(inputs) == 1 and inputs[0].get("dtype") == "float32" else []
    fits = len(shape) == 3 and all(isinstance(side, int) for side in shape) and shape[0] in (1, 3)
    return (shape[0], shape[1], shape[2]) if fits else None


def _check_reads_words(facts: ModelFacts) -> None:
    words = [tensor for tensor in (facts.inputs or {}).values() if "mask_of" not in tensor]
    if len(words) != 1 or words[0]["dtype"] not in ("int32", "int64") or len(words[0]["shape"]) != 1:
        shown = ", ".join(f"`{name}` {flow_yaml(tensor)}" for name, tensor in (facts.inputs or {}).items())
        text = f"`--template`: got `text`, which is for one input of token ids, but this model takes {shown}"
        raise InputError(text, hint="--handler own")
