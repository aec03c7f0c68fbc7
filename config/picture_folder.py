"""The folder of a model of pictures, as `transformers` saves it or as timm keeps it on a hub: read without torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.hf_folder import TWO_TOWERS, pickled_weights

PROCESSOR = "preprocessor_config.json"
# The classes of `transformers` by their ends, and the task that they were made for.
_MADE_FOR = {
    "ForImageClassification": "classify",
    "ForImageClassificationWithTeacher": "classify",
    "ForMaskedImageModeling": "embed",
    "ForObjectDetection": "detect",
    "ForSemanticSegmentation": "segment",
    "VisionModelWithProjection": "embed",
    "VisionModel": "embed",
    "Model": "embed",
}
# Detectors with a class for no object, and with a sigmoid for each class instead.
WITH_BACKGROUND = ("detr", "table-transformer", "yolos")
WITHOUT_BACKGROUND = (
    "conditional_detr",
    "d_fine",
    "dab-detr",
    "deformable_detr",
    "deta",
    "rt_detr",
    "rt_detr_v2",
)


class PictureFolderRefused(Exception):
    """Raised when the folder does not hold a model of pictures; `hint` says what to do."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class PictureFolder:
    path: Path
    config: dict[str, Any]
    processor: dict[str, Any] | None
    """How `transformers` makes the input; None if the folder does not say."""

    @property
    def from_timm(self) -> bool:
        return "architecture" in self.config

    @property
    def architecture(self) -> str:
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else str(self.config.get("architecture", ""))

    @property
    def made_for(self) -> str | None:
        """The task that it was made for; None if it is none of pictures."""
        if self.from_timm:
            return "classify" if self.config.get("num_classes", 1000) else "embed"
        return next((task for end, task in _MADE_FOR.items() if self.architecture.endswith(end)), None)

    @property
    def activation(self) -> str | None:
        """What makes scores of the numbers of its task."""
        kind = str(self.config.get("model_type"))
        if self.made_for == "detect":
            return {**dict.fromkeys(WITH_BACKGROUND, "softmax"), **dict.fromkeys(WITHOUT_BACKGROUND, "sigmoid")}.get(
                kind
            )
        is_many = self.config.get("problem_type") == "multi_label_classification"
        return "sigmoid" if is_many else "softmax"

    @property
    def detection(self) -> dict[str, Any] | None:
        """What the boxes of a detector mean."""
        if self.made_for != "detect":
            return None
        background = {"background": "last"} if self.config.get("model_type") in WITH_BACKGROUND else {}
        return {"boxes": "cxcywh", "unit": "fraction"} | background


def is_picture_folder(path: Path) -> bool:
    """Whether a folder holds a model that takes pictures and no texts, or timm's."""
    config = _json(path / "config.json") or {}
    takes = {"num_channels", "vision_config", "image_size"} & config.keys()
    no_text = not (path / "tokenizer.json").is_file() or config.get("model_type") in TWO_TOWERS
    processed = _json(path / PROCESSOR) or {}
    is_image = any(key.startswith("image_processor") for key in processed) or "image_mean" in processed
    return "architecture" in config or (bool(takes or is_image) and no_text and "num_mel_bins" not in config)


def read_picture_folder(path: Path) -> PictureFolder:
    """Reads a folder, or raises PictureFolderRefused."""
    config = _json(path / "config.json")
    if config is None:
        raise PictureFolderRefused(f"`{path}` has no `config.json`")
    if "auto_map" in config:
        raise PictureFolderRefused(f"`{path / 'config.json'}`: `auto_map`: the model comes with its own code")
    is_read = any(path.glob("*.safetensors")) or (pickled_weights(path) and "architecture" not in config)
    if not is_read:
        hint = f"model.save_pretrained('{path}'), which writes `model.safetensors`"
        raise PictureFolderRefused(f"`{path}` has no `.safetensors`", hint)
    return PictureFolder(path, config, _json(path / PROCESSOR))


def _json(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
