"""Boxes and masks: what a network's outputs become, and where they lie in the picture that was sent."""

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from marina.handlers.detection import DetectionHandler, drop_overlapping, find_objects
from marina.handlers.pictures import decode_placed
from marina.handlers.record import DetectionSpec, ImageSpec
from marina.handlers.segmentation import SegmentationHandler

HOW = DetectionSpec(boxes="xyxy", unit="pixels", background=None, min_score=0.5, max_boxes=100, overlap=None)
IMAGE = ImageSpec(
    height=64,
    width=64,
    resize=64,
    channels=3,
    mean=(0.0,),
    std=(1.0,),
    interpolation="bilinear",
    top_k=0,
    max_pixels=1_000_000,
)


def find(boxes: Any, scores: Any, labels: Any = None, how: DetectionSpec = HOW, activation: str = "none") -> Any:
    arrays = (np.asarray(each, np.float32) for each in (boxes, scores))
    numbers = None if labels is None else np.asarray(labels)
    return find_objects(*arrays, numbers, how, activation=activation, size=(64, 32))


def test_the_highest_scores_come_first_and_low_ones_are_left_out() -> None:
    found = find([[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]], [0.6, 0.4, 0.9], [7, 8, 9])
    assert found.boxes.tolist() == [[0, 0, 3, 3], [0, 0, 1, 1]]
    assert found.classes.tolist() == [9, 7]
    assert len(find([[0, 0, 1, 1]] * 3, [0.6, 0.7, 0.9], how=replace(HOW, max_boxes=2)).scores) == 2


def test_a_class_for_no_object_is_no_object() -> None:
    logits = [[0.0, 1.0, 9.0], [5.0, 1.0, 0.0]]
    for background, classes in (("last", [0]), ("first", [1, 0])):
        found = find(np.zeros((2, 4)), logits, how=replace(HOW, background=background), activation="softmax")
        assert found.classes.tolist() == (classes if background == "last" else [1])


def test_a_box_may_be_several_objects_if_classes_do_not_exclude_each_other() -> None:
    found = find([[0, 0, 1, 1], [0, 0, 2, 2]], [[3.0, -3.0], [1.0, 2.0]], activation="sigmoid")
    assert found.classes.tolist() == [0, 1, 0]
    assert found.boxes[:, 2].tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("how", "box"),
    [
        pytest.param({"boxes": "cxcywh"}, [2.0, 2.0, 6.0, 10.0], id="centres"),
        pytest.param({"boxes": "xywh"}, [4.0, 6.0, 8.0, 14.0], id="corner and sides"),
        pytest.param({"unit": "fraction"}, [128.0, 384.0, 128.0, 512.0], id="shares"),
    ],
)
def test_boxes_are_answered_as_corners(how: dict[str, Any], box: list[float]) -> None:
    assert find([[4, 6, 4, 8]], [1.0], how=replace(HOW, **how)).boxes.tolist() == [box]


def test_of_boxes_that_overlap_the_best_of_each_class_stays() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 1, 11, 11], [1, 1, 11, 11], [20, 20, 30, 30]], np.float32)
    assert drop_overlapping(boxes, np.array([0, 0, 1, 0]), 0.5, 100) == [0, 2, 3]
    assert drop_overlapping(boxes, np.array([0, 0, 1, 0]), 0.8, 100) == [0, 1, 2, 3]


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("fit", "size", "box"),
    [
        # The picture is 128 × 256: a box around all that the model sees.
        pytest.param("squash", (64, 64), [0, 0, 256, 128], id="squash"),
        pytest.param("letterbox", (64, 64), [0, 0, 256, 128], id="letterbox"),
        pytest.param("crop", (64, 64), [64, 0, 192, 128], id="crop"),
    ],
)
def test_boxes_lie_in_the_picture_that_was_sent(fit: str, size: tuple[int, int], box: list[float]) -> None:
    pixels, placement = decode_placed(png(128, 256), replace(IMAGE, fit=fit))
    assert pixels.shape == (*size, 3)
    everything = np.array([[0, 0, 64, 64]], np.float32)
    assert placement.to_picture(everything).tolist() == [box]
    bars = (np.asarray(pixels) == 114).all(-1).mean()
    assert bars == (0.5 if fit == "letterbox" else 0)


def test_an_object_is_answered_with_its_label_and_place() -> None:
    handler = DetectionHandler()
    handler.spec, handler.detection, handler.labels = (
        replace(IMAGE, fit="squash", activation="none"),
        HOW,
        ["cat", "dog"],
    )
    handler.places = {"scores": 0, "boxes": 1}
    _, placement = decode_placed(png(128, 256), handler.spec)
    outputs = [np.array([[0.1, 0.9]], np.float32), np.array([[16, 16, 32, 32]], np.float32)]
    answer = handler.encode(outputs, SimpleNamespace(kept=placement))  # type: ignore[arg-type]
    assert answer.body == b'{"objects":[{"class":1,"label":"dog","score":0.9,"box":[64.0,32.0,128.0,64.0]}]}'


def mask(scores: np.ndarray, activation: str) -> list[list[int]]:
    handler = SegmentationHandler()
    handler.spec, handler.place = replace(IMAGE, height=2, width=2, activation=activation), 0
    answer = handler.encode([scores.astype(np.float32)], None)  # type: ignore[arg-type]
    picture = Image.open(io.BytesIO(answer.body))
    assert (picture.format, picture.mode) == ("PNG", "P")
    found: list[list[int]] = np.asarray(picture).tolist()
    return found


@pytest.mark.parametrize(("fit", "size"), [("squash", (40, 8)), ("letterbox", (40, 20)), ("letterbox", (2, 3))])
def test_a_mask_of_the_pictures_size_lies_where_the_picture_does(fit: str, size: tuple[int, int]) -> None:
    handler = SegmentationHandler()
    handler.spec, handler.place = replace(IMAGE, fit=fit, activation="softmax", mask_size="picture"), 0
    # A picture whose right half is white, and a network that sees that, and calls the bars the class 2.
    picture = np.zeros((*size[::-1], 3), np.uint8)
    picture[:, size[0] // 2 :] = 255
    body = io.BytesIO()
    Image.fromarray(picture).save(body, "PNG")
    pixels, placement = decode_placed(body.getvalue(), handler.spec)
    grey = pixels[:, :, 0].astype(np.float32)
    bars = np.ones_like(grey, bool)
    left, top, right, bottom = placement.box()
    bars[top:bottom, left:right] = False
    scores = np.stack([255 - grey, grey, np.where(bars, 999, 0)])
    answer = handler.encode([scores], SimpleNamespace(kept=placement))  # type: ignore[arg-type]
    found = np.asarray(Image.open(io.BytesIO(answer.body)))
    assert (found == (picture[:, :, 0] > 0)).all()
    # Arrays have no other size than the model's input.
    answer = handler.encode([scores], SimpleNamespace(kept=None))  # type: ignore[arg-type]
    assert Image.open(io.BytesIO(answer.body)).size == (64, 64)


def test_a_mask_is_cut_at_one_half_of_a_score_and_at_zero_of_a_logit() -> None:
    values = np.array([[[0.2, 0.6], [-0.5, 0.5]]])
    assert mask(values, "none") == [[0, 1], [0, 1]]
    assert mask(values, "sigmoid") == [[1, 1], [0, 1]]


def test_a_pixel_of_several_classes_has_the_likeliest_and_small_maps_are_enlarged() -> None:
    assert mask(np.array([[[0, 3], [0, 0]], [[1, 2], [1, 1]]]), "softmax") == [[1, 0], [1, 1]]
    assert mask(np.array([[[0.0]], [[1.0]]]), "softmax") == [[1, 1], [1, 1]]
