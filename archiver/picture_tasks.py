"""Checks that a network's outputs are what its task of pictures and its `activation` say."""

import torch

from marina.archiver.graph import activation, output_ports
from marina.archiver.meaning import EndingTracker
from marina.config.errors import SourceError
from marina.config.spec import Spec
from marina.handlers.networks import ImageGraph

# The classes of a mask are written as bytes.
_MOST_CLASSES = 256
_NEEDED = {"detect": ("boxes", "scores"), "embed": ("embedding",), "segment": ("scores",)}


def check_picture_task(spec: Spec, graph: ImageGraph, pixels: torch.Tensor) -> None:
    """Raises SourceError unless the network's outputs for pictures have the names, shapes, types and values that the
    task needs."""
    task = str(spec.model.task)
    ports = output_ports(spec, graph, (pixels,))
    places = {port.name: place for place, port in enumerate(ports)}
    if missing := next((name for name in _NEEDED[task] if name not in places), None):
        got = ", ".join(f"`{port.name}` {list(port.shape)}" for port in ports)
        names = ", ".join(_NEEDED[task]) if len(ports) == len(_NEEDED[task]) else f"…, {missing}, …"
        raise SourceError(
            f"{spec.place('model', 'outputs')}: `task: {task}` needs an output called `{missing}`, got {got}",
            hint=f"outputs: [{names}], in the order of the model's outputs",
        )
    tracker = EndingTracker()
    with torch.no_grad(), tracker:
        outputs = graph(pixels)
    if task == "embed":
        _check_shape(spec, "embedding", outputs[places["embedding"]], 1, "[N], one vector for a picture")
        return
    scores = outputs[places["scores"]]
    if not scores.is_floating_point():
        raise _wrong(spec, f"its `scores` are {_dtype(scores)}", "numbers with a fraction", "are they labels?")
    if task == "segment":
        _check_mask(spec, scores, tracker)
    else:
        _check_boxes(spec, {name: outputs[place] for name, place in places.items()}, tracker)


def picture_classes(spec: Spec, graph: ImageGraph, pixels: torch.Tensor) -> int | None:
    """How many classes have labels; None for a detector whose network chooses the class itself."""
    with torch.no_grad():
        outputs = graph.outputs(pixels)
    if spec.model.task != "detect":
        return int(outputs[0].shape[-1])
    names = [port.name for port in output_ports(spec, graph, (pixels,))]
    scores = outputs[names.index("scores")]
    if "labels" in names or scores.ndim == 2:
        return None
    has_background = spec.model.detection is not None and spec.model.detection.background is not None
    return int(scores.shape[-1]) - has_background


def _check_mask(spec: Spec, scores: torch.Tensor, tracker: EndingTracker) -> None:
    _check_shape(spec, "scores", scores, 3, "[classes, rows, columns]")
    classes, how = scores.shape[1], activation(spec)
    if classes > _MOST_CLASSES:
        raise _wrong(spec, f"its `scores` have {classes} classes", f"at most {_MOST_CLASSES} in a mask", None)
    if classes == 1:
        if how == "softmax":
            text = "got `softmax`, but the model has one class, allowed: `sigmoid`, or `none` if its numbers are scores"
            raise SourceError(f"{spec.place('model', 'activation')}: {text}", hint="activation: sigmoid")
        _check_activation(spec, scores, tracker)
    elif tracker.is_sigmoid(scores) or how == "sigmoid":
        raise _wrong(
            spec,
            "its classes have a sigmoid each, so a pixel may have several",
            "one class for each pixel",
            "write a handler of your own, or use `handler: tensor`",
        )


def _check_boxes(spec: Spec, outputs: dict[str, torch.Tensor], tracker: EndingTracker) -> None:
    boxes, scores = outputs["boxes"], outputs["scores"]
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise _wrong(spec, f"its `boxes` are {list(boxes.shape[1:])}", "[N, 4]", None)
    if scores.shape[:2] != boxes.shape[:2] or scores.ndim > 3:
        raise _wrong(spec, f"its `scores` are {list(scores.shape[1:])}", f"[{boxes.shape[1]}] or a row for each", None)
    if (labels := outputs.get("labels")) is not None and labels.is_floating_point():
        raise _wrong(spec, f"its `labels` are {_dtype(labels)}", "whole numbers", None)
    _check_activation(spec, scores, tracker)


def _check_activation(spec: Spec, scores: torch.Tensor, tracker: EndingTracker) -> None:
    """Raises SourceError if `none` is said of numbers beyond 0 to 1, or an activation of what already has one."""
    how, place = activation(spec), spec.place("model", "activation")
    low, high = float(scores.min()), float(scores.max())
    if how == "none" and not (low >= 0 and high <= 1):
        text = f"got `none`, but the model's scores are from {low:.3g} to {high:.3g}, allowed for `none`: from 0 to 1"
        raise SourceError(f"{place}: {text}", hint="activation: sigmoid")
    if how != "none" and (tracker.is_sigmoid(scores) or tracker.ending(scores) == "_softmax"):
        text = f"got `{how}`, but the model ends in a {tracker.ending(scores).strip('_')} already"
        raise SourceError(f"{place}: {text}", hint="activation: none")


def _check_shape(spec: Spec, name: str, value: torch.Tensor, sides: int, allowed: str) -> None:
    if value.ndim != sides + 1:
        raise _wrong(spec, f"its `{name}` are {list(value.shape[1:])}", allowed, None)


def _wrong(spec: Spec, got: str, allowed: str, hint: str | None) -> SourceError:
    return SourceError(f"{spec.file}: `model.source`: {got}, allowed for `{spec.model.task}`: {allowed}", hint=hint)


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
