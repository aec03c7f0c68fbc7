"""Networks of pictures from a folder, as `transformers` saves it or as timm keeps it on a hub: the network of the task,
how it makes its input of a picture, and its labels.

The libraries are needed on the packaging machine only: a pod has the compiled graph."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from marina.archiver.preprocessing import PROCESSOR, NotServed, library_image, processor_image, processor_levels
from marina.archiver.transformers_folder import cannot_be_loaded, import_library, load_pretrained
from marina.config.errors import SourceError
from marina.config.hf_folder import pickled_weights
from marina.config.picture_folder import PictureFolder, PictureFolderRefused, read_picture_folder
from marina.config.sections import Image
from marina.config.spec import Spec
from marina.handlers.torchvision_import import prepare_torchvision

_CLASSES = {
    "classify": "AutoModelForImageClassification",
    "detect": "AutoModelForObjectDetection",
    "embed": "AutoModel",
    "segment": "AutoModelForSemanticSegmentation",
}


@dataclass(frozen=True)
class LoadedFolder:
    network: nn.Module
    image: Image
    labels: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


class FolderNetwork(nn.Module):
    """A model of `transformers` that takes pictures, with the outputs that its task needs."""

    def __init__(self, model: nn.Module, task: str) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, picture: torch.Tensor) -> Any:
        model: Any = self.model
        if self.task == "embed" and hasattr(model, "get_image_features"):
            found = model.get_image_features(pixel_values=picture)
            return {"embedding": found if isinstance(found, torch.Tensor) else found.pooler_output}
        answer = model(pixel_values=picture)
        if self.task == "detect":
            return {"scores": answer.logits, "boxes": answer.pred_boxes}
        if self.task == "embed":
            return {"embedding": _pooled(answer)}
        return {"scores": answer.logits} if self.task == "segment" else answer.logits


def _pooled(answer: Any) -> torch.Tensor:
    """The vector of a picture: what the model calls so, or else its first token."""
    for name in ("image_embeds", "pooler_output"):
        if (value := getattr(answer, name, None)) is not None:
            return value.flatten(1)  # type: ignore[no-any-return]
    return answer.last_hidden_state[:, 0]  # type: ignore[no-any-return]


def load_picture_folder(spec: Spec) -> LoadedFolder:
    """The network of the spec's task, in fp32. Raises SourceError if the folder does not hold one."""
    try:
        folder = read_picture_folder(spec.path(spec.model.folder or ""))
    except PictureFolderRefused as err:
        raise SourceError(f"{spec.file}: `model.source`: {err}", hint=err.hint) from err
    return _from_timm(spec, folder) if folder.from_timm else _from_transformers(spec, folder)


def _from_transformers(spec: Spec, folder: PictureFolder) -> LoadedFolder:
    task = str(spec.model.task)
    model, loaded = load_pretrained(spec, folder.path, _CLASSES[task])
    lost = sorted({*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])})
    if lost := [name for name in lost if "pooler" not in name or task != "embed"]:
        text = f"`{spec.model.source}` has no weights for `{lost[0]}`, which `task: {task}` needs"
        raise SourceError(f"{spec.file}: `model.task`: {text}", hint=f"task: {folder.made_for}")
    if any("pooler" in name for name in loaded["missing_keys"]):
        # Random numbers otherwise: the first token is taken instead.
        model = type(model).from_pretrained(
            folder.path,
            local_files_only=True,
            use_safetensors=pickled_weights(folder.path) is None,
            weights_only=True,
            add_pooling_layer=False,
            dtype=torch.float32,
        )
    named = folder.config.get("id2label")
    count = getattr(model.config, "num_labels", 0)
    labels = None
    if task in ("classify", "detect") and isinstance(named, dict) and len(named) == count:
        labels = tuple(str(named[str(number)]) for number in range(count))
    image = spec.model.image or _image(spec, folder, model)
    return LoadedFolder(FolderNetwork(model.eval(), task).eval(), image, labels)


def _image(spec: Spec, folder: PictureFolder, model: Any) -> Image:
    where = f"{spec.file}: `model.image`: missing: `{folder.path / PROCESSOR}`"
    side = getattr(model.config, "image_size", None)
    rows, columns = side if isinstance(side, (list, tuple)) else (side or 224,) * 2
    line = f"image: {{{{height: {rows}, width: {columns}, fit: squash, mean: {{mean}}, std: {{std}}}}}}"
    if folder.processor is None:
        hint = f"put the model's `{PROCESSOR}` into {folder.path}; or, with what it was trained with: "
        raise SourceError(
            f"{where} is not there to say how pictures are scaled",
            hint=hint + line.format(mean=[0.5], std=[0.5]),
        )
    try:
        fields = processor_image(folder.processor)
    except NotServed as err:
        hint = line.format(**{key: [*values] for key, values in processor_levels(folder.processor).items()})
        if folder.processor.get("do_flip_channel_order"):
            hint = "source: ./model.py:build, a module around it whose `forward` returns `self.model(picture.flip(1))`"
        raise SourceError(f"{where} says what `image` cannot: {err}", hint=hint) from err
    size = (getattr(model.config, "num_channels", 3), fields["height"], fields["width"])
    return Image(**fields, channels=1 if size[0] == 1 else 3)


def _from_timm(spec: Spec, folder: PictureFolder) -> LoadedFolder:
    from safetensors.torch import load_file

    prepare_torchvision()
    timm = import_library("timm", "pip install timm")
    config, task = folder.config, str(spec.model.task)
    settings = dict(config.get("pretrained_cfg") or {})
    classes = 0 if task == "embed" else int(config.get("num_classes") or settings.get("num_classes") or 1000)
    try:
        model = timm.create_model(config["architecture"], num_classes=classes, **(config.get("model_args") or {}))
        weights = load_file(folder.path / "model.safetensors")
        own = model.state_dict()
        left = {name: value for name, value in weights.items() if name in own or task != "embed"}
        model.load_state_dict(left)
    except (OSError, RuntimeError, TypeError, ValueError) as err:
        raise cannot_be_loaded(spec, err) from err
    model.pretrained_cfg = settings
    channels, height, width = settings.get("input_size", (3, 224, 224))
    fields, _ = library_image(model, (channels, height, width)) or ({}, "")
    image = spec.model.image or Image(height=height, width=width, channels=1 if channels == 1 else 3, **fields)
    return LoadedFolder(model.eval(), image, _timm_labels(timm, config, classes) if task == "classify" else None)


def _timm_labels(timm: Any, config: dict[str, Any], classes: int) -> tuple[str, ...] | None:
    """The names of the classes: those in the folder's configuration, or timm's own of an ImageNet."""
    names, described = config.get("label_names"), config.get("label_descriptions")
    if isinstance(names, list) and len(names) == classes:
        known = described if isinstance(described, dict) else {}
        return tuple(str(known.get(name, name)) for name in names)
    subset = timm.data.infer_imagenet_subset(classes)
    info = timm.data.ImageNetInfo(subset) if subset else None
    return tuple(info.label_descriptions()) if info else None
