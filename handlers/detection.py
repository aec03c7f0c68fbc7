"""`handler: image` with `task: detect`: pictures in, the objects in them out.

Takes what `handler: image` takes. Answers `{"objects": [{"class": 3, "label": "cat", "score": 0.98, "box": [left, top,
right, bottom]}]}`, the highest score first, with boxes in pixels of the picture as it was sent; labels only if the
package has them. A V2 request is answered with the boxes in pixels of the model's input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from marina.handlers.arrays import Array
from marina.handlers.image import ImageHandler
from marina.handlers.pictures import Placement
from marina.handlers.record import DetectionSpec, RecordError
from marina.handlers.request import Answer, Form, Request

_OBJECT = {
    "type": "object",
    "properties": {
        "class": {"type": "integer", "minimum": 0},
        "label": {"type": "string"},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
    },
    "required": ["class", "score", "box"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Objects:
    """The objects in one picture, the highest score first."""

    boxes: Array
    """Left, top, right and bottom of each, in pixels of the model's input."""
    scores: Array
    classes: Array


class DetectionHandler(ImageHandler):
    gives = Form(
        {
            "type": "object",
            "properties": {"objects": {"type": "array", "items": _OBJECT}},
            "required": ["objects"],
            "additionalProperties": False,
        }
    )

    def setup(self) -> None:
        super().setup()
        if self.spec.detection is None:
            raise RecordError("`image.detection`: missing, but the task is `detect`")
        self.detection = self.spec.detection
        self.places = {port.name: place for place, port in enumerate(self.record.outputs)}

    def encode(self, outputs: list[Array], request: Request) -> Answer:
        found = self._find(outputs)
        placement: Placement | None = request.kept
        boxes = found.boxes if placement is None else placement.to_picture(found.boxes)
        objects = [
            self._describe(int(number), float(score), box)
            for number, score, box in zip(found.classes, found.scores, boxes, strict=True)
        ]
        return Answer(orjson.dumps({"objects": objects}))

    def _describe(self, number: int, score: float, box: Array) -> dict[str, Any]:
        label = {} if self.labels is None else {"label": self.labels[number]}
        return {"class": number} | label | {"score": round(score, 4), "box": [round(float(side), 2) for side in box]}

    def name_outputs(self, outputs: list[Array]) -> Mapping[str, Array | list[str]]:
        found = self._find(outputs)
        named: dict[str, Array | list[str]] = vars(found)
        labels = {} if self.labels is None else {"labels": [self.labels[number] for number in found.classes.tolist()]}
        return named | labels

    def _find(self, outputs: list[Array]) -> Objects:
        place = self.places.get("labels")
        return find_objects(
            outputs[self.places["boxes"]],
            outputs[self.places["scores"]],
            None if place is None else outputs[place],
            self.detection,
            activation=self.spec.activation,
            size=(self.spec.height, self.spec.width),
        )


def find_objects(
    boxes: Array, scores: Array, labels: Array | None, how: DetectionSpec, *, activation: str, size: tuple[int, int]
) -> Objects:
    """The objects that a detector's outputs for one picture describe: boxes [N, 4], scores [N] or [N, classes], and
    perhaps the class of each box."""
    shares = apply_activation(scores.reshape(len(boxes), -1).astype(np.float32), activation)
    if how.background is not None:
        shares = shares[:, :-1] if how.background == "last" else shares[:, 1:]
    if activation == "sigmoid" and labels is None:
        # Classes do not exclude each other: a box with two high scores is two objects, as in these models' own code.
        rows, classes = np.nonzero(shares >= how.min_score)
    else:
        rows, classes = np.arange(len(boxes)), shares.argmax(axis=1)
    score = shares[rows, classes]
    if labels is not None:
        classes = labels.reshape(-1)
    order = np.argsort(-score, kind="stable")
    order = order[score[order] >= how.min_score]
    corners = _corners(boxes[rows[order]].astype(np.float32), how, size)
    if how.overlap is not None:
        kept = drop_overlapping(corners, classes[order], how.overlap, how.max_boxes)
        order, corners = order[kept], corners[kept]
    order, corners = order[: how.max_boxes], corners[: how.max_boxes]
    return Objects(corners, score[order], classes[order])


def apply_activation(values: Array, activation: str) -> Array:
    """Scores from 0 to 1 of a network's numbers, over the last dimension."""
    if activation == "none":
        return values
    if activation == "sigmoid":
        scores: Array = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
        return scores
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    softmax: Array = shares / shares.sum(axis=-1, keepdims=True)
    return softmax


def _corners(boxes: Array, how: DetectionSpec, size: tuple[int, int]) -> Array:
    """Boxes as left, top, right and bottom, in pixels of the model's input."""
    if how.unit == "fraction":
        height, width = size
        boxes = boxes * np.array([width, height, width, height], np.float32)
    if how.boxes == "xyxy":
        return boxes
    first, sides = boxes[:, :2], boxes[:, 2:]
    if how.boxes == "cxcywh":
        first = first - sides / 2
    return np.concatenate([first, first + sides], axis=1)


def drop_overlapping(boxes: Array, classes: Array, overlap: float, most: int) -> list[int]:
    """The positions of the boxes that stay: in order, each that overlaps with none of its class before it by more than
    this share of their union."""
    areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    kept: list[int] = []
    for at in range(len(boxes)):
        if len(kept) == most:
            break
        others = [other for other in kept if classes[other] == classes[at]]
        if others:
            least, most_far = np.maximum(boxes[at, :2], boxes[others, :2]), np.minimum(boxes[at, 2:], boxes[others, 2:])
            shared = (most_far - least).clip(0).prod(axis=1)
            union = areas[at] + areas[others] - shared
            if (shared > overlap * union).any():
                continue
        kept.append(at)
    return kept
