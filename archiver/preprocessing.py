"""How a model's own library makes its input of a picture, as `model.image` of a spec has it: read from `pretrained_cfg`
of timm, a `preprocessor_config.json` of transformers, or the encoder of segmentation_models_pytorch."""

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from marina.archiver.yolo import YoloNetwork

# Pillow's numbers of filters. Lanczos is nearest to bicubic.
_FILTERS = {0: "nearest", 1: "bicubic", 2: "bilinear", 3: "bicubic"}
_IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
PROCESSOR = "preprocessor_config.json"


class ScalingUnsaid(Exception):
    """Raised for a model of a library whose models differ in how pictures are scaled, where no file says it; `loaded`
    is what it was loaded from."""

    def __init__(self, text: str, loaded: str) -> None:
        super().__init__(text)
        self.loaded = loaded


class NotServed(Exception):
    """Raised for a way of making an input that `model.image` cannot say."""


def input_size(network: nn.Module) -> tuple[int, int, int] | None:
    """The channels, rows and columns that the model was made for, if its library says them."""
    if isinstance(network, YoloNetwork):
        return network.picture
    size = (_timm_settings(network) or {}).get("input_size")
    if size is None and (config := _transformers_config(network)) is not None:
        side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
        sides = (side, side) if isinstance(side, int) else side
        size = (channels, *sides) if isinstance(sides, (list, tuple)) and len(sides) == 2 else None
    return (int(size[0]), int(size[1]), int(size[2])) if size and size[0] in (1, 3) else None


def library_image(network: nn.Module, picture: tuple[int, int, int]) -> tuple[dict[str, Any], str] | None:
    """Fields of `model.image` beside its size, with the words for what says them; None if no library does. Raises
    ScalingUnsaid for a model of transformers without the settings of its processor."""
    if isinstance(network, YoloNetwork):
        return network.image, "as ultralytics does it"
    if settings := _timm_settings(network):
        return _of_timm(settings, picture), "as `pretrained_cfg` of timm says"
    if (config := _transformers_config(network)) is not None:
        data, said = _processor_of(config)
        fields = processor_image(_for_size(data, picture), picture)
        return {key: value for key, value in fields.items() if key not in ("height", "width")}, said
    modules = [type(inner).__module__ for inner in (network, *network.children())]
    if any(name.startswith("segmentation_models_pytorch") for name in modules):
        trained = _of_smp(network)
        return (trained, "as its encoder was trained, says segmentation_models_pytorch") if trained else None
    if any(name.startswith("torchvision.models") for name in modules) and picture[0] == 3:
        return dict(_IMAGENET) | ({"resize": 256} if picture[1:] == (224, 224) else {}), "as torchvision's weights need"
    return None


def processor_image(data: Mapping[str, Any], picture: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """Fields of `model.image`, with its size, from a `preprocessor_config.json`. Raises NotServed for what they cannot
    say."""
    if data.get("do_flip_channel_order"):
        raise NotServed("`do_flip_channel_order`: its channels are blue, green and red")
    size, crop = _size(data.get("size")), _size(data.get("crop_size"))
    cropped = data.get("do_center_crop", False) and crop is not None and "height" in crop
    fields: dict[str, Any] = {}
    if size is None or data.get("do_resize") is False:
        raise NotServed("no `size`, to which pictures are scaled")
    if "height" in size:
        fields |= {"fit": "squash", "height": size["height"], "width": size["width"]}
        if cropped and crop and crop != size:
            fields |= {"height": crop["height"], "width": crop["width"], "resize": max(size["height"], size["width"])}
    elif "shortest_edge" in size and cropped and crop:
        fields |= {"height": crop["height"], "width": crop["width"], "resize": size["shortest_edge"]}
    elif "shortest_edge" in size and "crop_pct" in data:
        # ConvNeXt: small inputs are cut out of a larger picture, large ones squashed.
        side = int(size["shortest_edge"])
        fields |= {"height": side, "width": side}
        fields |= {"resize": int(side / (data["crop_pct"] or 0.875))} if side < 384 else {"fit": "squash"}
    elif picture is not None:
        fields |= {"fit": "squash", "height": picture[1], "width": picture[2]}
    else:
        raise NotServed(f"`size`: {json.dumps(data.get('size'))}: pictures keep their shape, and the model takes any")
    resample = data.get("resample")
    fields["interpolation"] = _FILTERS.get(int(resample) if resample is not None else 2, "bilinear")
    return fields | processor_levels(data)


def _for_size(data: Mapping[str, Any], picture: tuple[int, int, int]) -> dict[str, Any]:
    """The settings for a picture of another size than they name, with the same share cut off."""
    size, crop = _size(data.get("size")) or {}, _size(data.get("crop_size")) or {}
    cropped = bool(data.get("do_center_crop")) and "height" in crop
    seen = (crop if cropped else size).get("height", size.get("shortest_edge"))
    if not seen or seen == picture[1]:
        return dict(data)
    scaled = {key: round(side * picture[1] / seen) for key, side in size.items() if side}
    return {**data, "size": scaled, "crop_size": {"height": picture[1], "width": picture[2]}}


def processor_levels(data: Mapping[str, Any]) -> dict[str, Any]:
    """`mean` and `std` on the scale from 0 to 1, whatever the processor multiplies levels by."""
    factor = data.get("rescale_factor", 1 / 255) if data.get("do_rescale", True) else 1.0
    normalised = data.get("do_normalize", True) and data.get("image_mean") is not None
    mean = data["image_mean"] if normalised else [0.0]
    std = data["image_std"] if normalised else [1.0]
    unit = 255 * float(factor)
    mean, std = (values if isinstance(values, (list, tuple)) else [values] for values in (mean, std))
    return {
        "mean": tuple(round(value / unit, 8) for value in mean),
        "std": tuple(round(value / unit, 8) for value in std),
    }


def _size(value: object) -> dict[str, int] | None:
    if isinstance(value, int):
        return {"height": value, "width": value}
    if isinstance(value, Mapping):
        return {str(key): int(side) for key, side in value.items() if side is not None}
    return None


def _timm_settings(network: nn.Module) -> dict[str, Any] | None:
    for module in (network, *network.children()):
        settings = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if isinstance(settings, dict) and {"input_size", "mean", "std"} <= settings.keys():
            return settings
    return None


def _of_timm(settings: Mapping[str, Any], picture: tuple[int, int, int]) -> dict[str, Any]:
    longer, share = max(picture[1:]), settings.get("crop_pct") or 0.875
    fields = {"mean": tuple(settings["mean"]), "std": tuple(settings["std"]), "resize": math.floor(longer / share)}
    if settings.get("crop_mode") == "squash":
        fields["fit"] = "squash"
    return fields | {"interpolation": str(settings.get("interpolation") or "bicubic")}


def _transformers_config(network: nn.Module) -> Any:
    for module in (network, *(network.children() if len([*network.children()]) == 1 else ())):
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "model_type"):
            return config
    return None


def _processor_of(config: Any) -> tuple[dict[str, Any], str]:
    """The settings of the processor, from the folder that the model was loaded from. The defaults of its class are not
    those of most weights: Swin's, for example, were trained with others."""
    loaded = str(getattr(config, "name_or_path", "") or "")
    file = Path(loaded) / PROCESSOR
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict):
        found = f"`{file}` is not there" if loaded else f"it was not loaded from a folder with `{PROCESSOR}`"
        raise ScalingUnsaid(f"nothing says how a `{config.model_type}` was given its pictures: {found}", loaded)
    return data, f"as `{file}` says"


def _of_smp(network: nn.Module) -> dict[str, Any] | None:
    """The settings of a trained encoder; None if it was not trained, or if the library does not have them here."""
    inner = next((part for part in (network, *network.children()) if hasattr(part, "_hub_mixin_config")), None)
    made: Any = getattr(inner, "_hub_mixin_config", None) or {}
    if not made.get("encoder_weights"):
        return None
    try:
        encoders: Any = importlib.import_module("segmentation_models_pytorch").encoders
        settings = encoders.get_preprocessing_params(made["encoder_name"], made["encoder_weights"])
    except Exception:  # among others, that its hub cannot be reached
        return None
    unit = settings["input_range"][-1] if settings.get("input_range") else 1
    return {key: tuple(value / unit for value in settings[key]) for key in ("mean", "std")}
