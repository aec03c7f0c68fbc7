"""Detectors of ultralytics, from the `.pt` that it writes: what their one output means, and how they see pictures.

A network is recognised by its class. Nothing of ultralytics is imported here: loading the file has done that, from the
user's own installation."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_DETECTOR, _LIBRARY = "DetectionModel", "ultralytics"
# What it predicts with unless it is told otherwise.
_SIDE, _MIN_SCORE, _OVERLAP, _MOST_BOXES = 640, 0.25, 0.7, 300


class YoloNetwork(nn.Module):
    """A detector of ultralytics that takes pictures of one size, with the outputs that `task: detect` needs."""

    def __init__(self, model: nn.Module, size: tuple[int, int] | None) -> None:
        super().__init__()
        self.model = model.eval()
        height, width = size or _trained_size(model)
        first = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
        self.picture = (first.in_channels, height, width)
        self.names = _names(model)
        head: Any = model.model[-1]  # type: ignore[index]
        self.ends_in_boxes = bool(getattr(head, "end2end", False))
        with torch.no_grad():
            model(torch.zeros(1, *self.picture))
        # It has computed the places of its boxes now, and would do so again for another number of rows, too.
        head.shape = _AnyShape()

    def forward(self, picture: torch.Tensor) -> dict[str, torch.Tensor]:
        answer = self.model(picture)
        found = answer if isinstance(answer, torch.Tensor) else answer[0]
        if self.ends_in_boxes:
            return {"scores": found[..., 4], "boxes": found[..., :4], "labels": found[..., 5].to(torch.int64)}
        return {"scores": found[:, 4:].transpose(1, 2), "boxes": found[:, :4].transpose(1, 2)}

    @property
    def detection(self) -> dict[str, Any]:
        """Fields of `model.detection`."""
        limits = {"min_score": _MIN_SCORE, "max_boxes": _MOST_BOXES}
        return limits if self.ends_in_boxes else {"boxes": "cxcywh", **limits, "overlap": _OVERLAP}

    @property
    def image(self) -> dict[str, Any]:
        """Fields of `model.image` beside its size."""
        channels = self.picture[0]
        return {"fit": "letterbox", "mean": (0.0,) * channels, "std": (1.0,) * channels}


class _AnyShape(tuple[int, ...]):
    """Equal to every shape."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = tuple.__hash__


def as_detector(network: nn.Module, size: tuple[int, int] | None) -> nn.Module:
    """The network, for pictures of this size if it is a detector of ultralytics; by default of that of its training."""
    return YoloNetwork(network, size) if _is_theirs(network) and type(network).__name__ == _DETECTOR else network


def other_class(network: nn.Module) -> str | None:
    """The class of a network of ultralytics that does not detect by boxes; None for others."""
    return type(network).__name__ if _is_theirs(network) else None


def _is_theirs(network: nn.Module) -> bool:
    return type(network).__module__.partition(".")[0] == _LIBRARY


def _trained_size(model: nn.Module) -> tuple[int, int]:
    settings = getattr(model, "args", None) or {}
    side = settings.get("imgsz") if isinstance(settings, Mapping) else getattr(settings, "imgsz", None)
    sides = side if isinstance(side, (list, tuple)) else (side or _SIDE,) * 2
    return int(sides[0]), int(sides[-1])


def _names(model: nn.Module) -> tuple[str, ...] | None:
    names = getattr(model, "names", None)
    named = dict(enumerate(names)) if isinstance(names, (list, tuple)) else names
    if not isinstance(named, Mapping) or {*named} != {*range(len(named))}:
        return None
    return tuple(str(named[number]) for number in range(len(named)))
