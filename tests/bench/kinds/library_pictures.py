"""Models of pictures as the users of several libraries have them: each is saved into a folder, with random weights, and
comes with what is typed after `marina init NAME` and the library's own answer to a picture."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

Answers = Callable[[Any], float]
"""How far an answer of Marina's is from the library's own."""


@dataclass(frozen=True)
class Kind:
    arguments: list[str]
    body: bytes
    content_type: str
    difference: Answers
    edited: bool = False
    """Whether the options say what the library's files do not."""


def picture() -> Image.Image:
    """Smooth, and of a size whose crops have no half pixels, which libraries round in several ways."""
    down, across = np.mgrid[0:140, 0:188]
    waves = [np.sin(across / 19 + shift) * np.cos(down / 17) * 127 + 128 for shift in range(3)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def png(shown: Image.Image) -> bytes:
    body = io.BytesIO()
    shown.save(body, "PNG")
    return body.getvalue()


def of_classes(expected: torch.Tensor) -> Answers:
    """For shares of classes: infinite if the likeliest is another."""

    def difference(reply: Any) -> float:
        places, shares = reply.json()["top_indices"], reply.json()["top_probs"]
        top = expected.topk(len(places))
        if top.values[0] - top.values[1] > 1e-2 and places[0] != int(top.indices[0]):
            return float("inf")
        return float((expected[places] - torch.tensor(shares)).abs().max())

    return difference


def of_vector(expected: torch.Tensor) -> Answers:
    def difference(reply: Any) -> float:
        (values,) = reply.json().values()
        got = torch.tensor(values, dtype=torch.float32).flatten()
        return float((got - expected.flatten()).norm() / expected.norm())

    return difference


def of_mask(expected: torch.Tensor) -> Answers:
    """For a mask of classes: the share of pixels that differ."""

    def difference(reply: Any) -> float:
        got = np.asarray(Image.open(io.BytesIO(reply.body)))
        if got.shape != tuple(expected.shape):
            return float("inf")
        return float((got != expected.numpy()).mean())

    return difference


def of_boxes(boxes: torch.Tensor, scores: torch.Tensor) -> Answers:
    def difference(reply: Any) -> float:
        found = reply.json()["objects"]
        if len(found) != len(boxes):
            return float("inf")
        got = torch.tensor([each["box"] for each in found])
        order = scores.argsort(descending=True)
        off = (got - boxes[order].clamp(min=0)).abs().max() / 100
        return float(max(off, (torch.tensor([each["score"] for each in found]) - scores[order]).abs().max()))

    return difference


_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_SEEN = {**_SMALL, "image_size": 64, "patch_size": 16}
_SQUARE: dict[str, Any] = {"size": {"height": 64, "width": 64}}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
_TEXTS = {**_SMALL, "vocab_size": 100}
_SEGFORMER = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 1, 1],
    "decoder_hidden_size": 16,
    "num_labels": 6,
}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
_DETR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "num_queries": 8}
_DETR |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_labels": 4}
# The class, its configuration's fields, the processor's class and fields, and what is answered.
FOLDERS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "hf ViT": ("ViTForImageClassification", _SEEN | {"num_labels": 3}, "ViTImageProcessor", _SQUARE, "classify"),
    "hf DeiT": (
        "DeiTForImageClassification",
        _SEEN | {"num_labels": 4},
        "DeiTImageProcessor",
        {"size": {"height": 72, "width": 72}, "crop_size": {"height": 64, "width": 64}},
        "classify",
    ),
    "hf Swin": ("SwinForImageClassification", _SWIN | {"num_labels": 3}, "ViTImageProcessor", _SQUARE, "classify"),
    "hf Swinv2": ("Swinv2ForImageClassification", _SWIN | {"num_labels": 3}, "ViTImageProcessor", _SQUARE, "classify"),
    "hf ConvNeXt": (
        "ConvNextForImageClassification",
        _STAGES | {"num_labels": 3},
        "ConvNextImageProcessor",
        {"size": {"shortest_edge": 64}},
        "classify",
    ),
    "hf ResNet": (
        "ResNetForImageClassification",
        _RESNET | {"num_labels": 3},
        "ConvNextImageProcessor",
        {"size": {"shortest_edge": 64}, "crop_pct": 0.875},
        "classify",
    ),
    "hf BEiT": ("BeitForImageClassification", _SEEN | {"num_labels": 3}, "BeitImageProcessor", _SQUARE, "classify"),
    "hf MobileViT": (
        "MobileViTForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
            "num_labels": 3,
        },
        "MobileViTImageProcessor",
        {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}, "do_flip_channel_order": True},
        "classify",
    ),
    "hf Dinov2": (
        "Dinov2Model",
        _SEEN | {"patch_size": 16},
        "BitImageProcessor",
        {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}},
        "embed",
    ),
    "hf CLIP pictures": (
        "CLIPModel",
        {"text_config": _TEXTS, "vision_config": _SEEN, "projection_dim": 16},
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}},
        "embed",
    ),
    "hf SigLIP pictures": (
        "SiglipModel",
        {"text_config": _TEXTS, "vision_config": _SEEN},
        "SiglipImageProcessor",
        _SQUARE,
        "embed",
    ),
    "hf Segformer": ("SegformerForSemanticSegmentation", _SEGFORMER, "SegformerImageProcessor", _SQUARE, "segment"),
    "hf YOLOS": (
        "YolosForObjectDetection",
        {**_SMALL, "image_size": [64, 64], "num_detection_tokens": 10, "num_labels": 5},
        "YolosImageProcessor",
        _SQUARE,
        "detect",
    ),
    "hf DETR": (
        "DetrForObjectDetection",
        _DETR | {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None},
        "DetrImageProcessor",
        {"size": {"shortest_edge": 64, "longest_edge": 96}},
        "detect",
    ),
}


def _resnet(transformers: Any) -> Any:
    return transformers.ResNetConfig(**_RESNET, out_features=["stage2"])


def save_folder(name: str, folder: Path) -> Kind:
    import transformers

    kind, fields, processor, how, task = FOLDERS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    if kind.startswith("Detr"):
        fields = fields | {"backbone_config": _resnet(transformers)}
    model = made(made.config_class(**fields)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "class" in key:
                value.mul_(20)
    reader = getattr(transformers, processor)(**how)
    model.save_pretrained(folder / "model")
    reader.save_pretrained(folder / "model")
    shown = picture()
    inputs = reader(images=shown, return_tensors="pt")
    arguments = ["--source", "hf:./model"]
    with torch.no_grad():
        if task == "embed":
            found = model.get_image_features(**inputs) if hasattr(model, "get_image_features") else model(**inputs)
            vector = found if isinstance(found, torch.Tensor) else found.pooler_output
            return Kind(arguments, png(shown), "image/png", of_vector(vector[0]))
        output = model(**inputs)
    if task == "classify":
        return Kind(arguments, png(shown), "image/png", of_classes(output.logits[0].softmax(-1)))
    if task == "segment":
        mask = reader.post_process_semantic_segmentation(output, target_sizes=[(64, 64)])[0]
        return Kind(arguments, png(shown), "image/png", of_mask(mask))
    size = [(shown.height, shown.width)]
    (theirs,) = reader.post_process_object_detection(output, threshold=0.2, target_sizes=size)
    lines = ["--set", "detection: {boxes: cxcywh, unit: fraction, background: last, min_score: 0.2}"]
    return Kind([*arguments, *lines], png(shown), "image/png", of_boxes(theirs["boxes"], theirs["scores"]))


_TIMM = 'import timm\n\n\ndef build():\n    return timm.create_model("{name}", pretrained=False{more})\n'


def save_timm(name: str, folder: Path, **more: Any) -> Kind:
    """A file that makes the model, and a checkpoint of it."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **more).eval()
    words = "".join(f", {key}={value!r}" for key, value in more.items())
    (folder / "model.py").write_text(_TIMM.format(name=name, more=words), encoding="utf-8")
    torch.save(model.state_dict(), folder / "net.pt")
    how = timm.data.resolve_model_data_config(model)
    shown = picture()
    with torch.no_grad():
        output = model(timm.data.create_transform(**how, is_training=False)(shown)[None])[0]
    difference = of_vector(output) if more.get("num_classes") == 0 else of_classes(output.softmax(-1))
    return Kind(["--source", "./model.py", "--weights", "net.pt"], png(shown), "image/png", difference)


def save_timm_folder(folder: Path) -> Kind:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=4).eval()
    timm.models.save_for_hf(model, folder / "model", model_config={"num_classes": 4})
    shown, how = picture(), timm.data.resolve_model_data_config(model)
    with torch.no_grad():
        output = model(timm.data.create_transform(**how, is_training=False)(shown)[None])[0]
    return Kind(["--source", "hf:./model"], png(shown), "image/png", of_classes(output.softmax(-1)))


def save_torchvision(name: str, folder: Path) -> Kind:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, num_classes=1000).eval()
    torch.save(model.state_dict(), folder / "net.pt")
    how = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    shown = picture()
    with torch.no_grad():
        output = model(how(shown)[None])[0]
    arguments = ["--source", f"torchvision:{name}", "--weights", "./net.pt"]
    return Kind(arguments, png(shown), "image/png", of_classes(output.softmax(-1)))


_OWN = """import {library}
import torch


def build():
    torch.manual_seed(0)
    return {made}
"""


def save_own(folder: Path, library: str, made: str, arguments: list[str], side: int, answered: str) -> Kind:
    """A file with a network of a library that does not say how pictures are given to it: the options do."""
    (folder / "model.py").write_text(_OWN.format(library=library, made=made), encoding="utf-8")
    scope: dict[str, Any] = {}
    exec((folder / "model.py").read_text(encoding="utf-8"), scope)
    shown = picture().resize((side, side))
    pixels = torch.from_numpy(np.asarray(shown)).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        output = scope["build"]().eval()(pixels)
    if answered == "mask of out":
        output, answered = output["out"], "mask"
    if answered == "mask":
        classes = output[0].argmax(0) if output.shape[1] > 1 else (output[0, 0].sigmoid() >= 0.5)
        difference = of_mask(classes.to(torch.uint8))
    else:
        difference = of_vector(output[0]) if answered == "vector" else of_classes(output[0].softmax(-1))
    size = ["--input", f"x:float32:3,{side},{side}", "--fit", "squash", "--normalize", "0..1"]
    return Kind(["--source", "./model.py", *size, *arguments], png(shown), "image/png", difference, edited=True)


_SMP = "segmentation_models_pytorch"
_ENCODER = "encoder_name='resnet18', encoder_weights=None"
KINDS: dict[str, Callable[[Path], Kind]] = {
    **{name: (lambda folder, name=name: save_folder(name, folder)) for name in FOLDERS},  # type: ignore[misc]
    "timm resnet": lambda folder: save_timm("resnet10t", folder),
    "timm vit": lambda folder: save_timm("vit_tiny_patch16_224", folder),
    "timm mobilenet": lambda folder: save_timm("mobilenetv3_small_050", folder),
    "timm convnext": lambda folder: save_timm("convnext_atto", folder),
    "timm vectors": lambda folder: save_timm("resnet10t", folder, num_classes=0),
    "timm folder": save_timm_folder,
    "torchvision resnet": lambda folder: save_torchvision("resnet18", folder),
    "torchvision efficientnet": lambda folder: save_torchvision("efficientnet_b0", folder),
    "torchvision swin": lambda folder: save_torchvision("swin_t", folder),
    "smp Unet": lambda folder: save_own(folder, _SMP, f"{_SMP}.Unet({_ENCODER}, classes=3)", [], 64, "mask"),
    "smp FPN": lambda folder: save_own(folder, _SMP, f"{_SMP}.FPN({_ENCODER}, classes=1)", [], 64, "mask"),
    "smp DeepLabV3+": lambda folder: save_own(
        folder, _SMP, f"{_SMP}.DeepLabV3Plus({_ENCODER}, classes=4)", [], 64, "mask"
    ),
    "monai UNet": lambda folder: save_own(
        folder, "monai", "monai.networks.nets.UNet(2, 3, 2, (8, 16, 32), (2, 2))", [], 64, "mask"
    ),
    "monai DenseNet": lambda folder: save_own(
        folder, "monai", "monai.networks.nets.DenseNet121(2, 3, 4)", [], 64, "classes"
    ),
    "monai SegResNet": lambda folder: save_own(
        folder, "monai", "monai.networks.nets.SegResNet(2, 8, 3, 4)", [], 64, "mask"
    ),
    "torchvision deeplab": lambda folder: save_own(
        folder,
        "torchvision",
        "torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)",
        [],
        64,
        "mask of out",
    ),
}
