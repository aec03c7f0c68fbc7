"""Reads what the outputs of a network of pictures mean from what is written down: its configuration, the names and
types of its outputs, its last layer and operator, and the losses that its own file names.

Whatever none of these say is not guessed: `read_meaning` then returns a `Unsaid` with the options to type."""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from marina.archiver.yolo import YoloNetwork
from marina.config.picture_folder import WITH_BACKGROUND, WITHOUT_BACKGROUND
from marina.handlers.networks import flat_outputs

# Operators that only move values, or choose among them.
_MOVING = {
    *(
        "_to_copy",
        "_upsample_bilinear2d_aa",
        "amax",
        "cat",
        "clone",
        "gather",
        "index",
        "index_select",
        "masked_select",
    ),
    *("max", "sort", "stack", "topk", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_nearest2d"),
}
_SIGMOIDS = ("hardsigmoid", "sigmoid")
# Sums of probabilities may differ from 1 by as much.
_ROUNDING = 1e-3

# The losses of a file, and what the numbers are that they are computed of.
_LOSSES = {
    "softmax": r"cross_entropy|CrossEntropyLoss|NLLLoss|nll_loss",
    "sigmoid": r"binary_cross_entropy_with_logits|BCEWithLogitsLoss|MultiLabelSoftMarginLoss",
    "number": r"MSELoss|mse_loss|\bL1Loss|\bl1_loss|SmoothL1Loss|smooth_l1_loss|HuberLoss|huber_loss",
    "embedding": r"[Tt]riplet|ContrastiveLoss|CosineEmbeddingLoss|InfoNCE|NTXent|ArcFace|CosFace",
}
# What layers, attributes and classes are called, in lower case, whose numbers are scores of classes, or are not.
_CLASSES = re.compile(
    r"^(fc\d*|cls|(\w+_)?(head|heads|classifier|class_layers?|classification|logits?|classes)(_?\d+)?|last_linear)$"
)
_NO_CLASSES = re.compile(
    r"embed|encod|proj|feature|backbone|siamese|triplet|metric|contrast|hash|keypoint|landmark|regress|pose|gaze|bbox|"
    r"depth|coord|angle|autoenc|reward|vae"
)
_EMBEDDING = re.compile(r"embed|encod|proj|feature|backbone|siamese|triplet|metric|contrast")
_SEGMENTS = re.compile(r"seg(ment|m?_|$|former|\w*net|m?ate)|unet|fcn|deeplab|pspnet|linknet|upernet|mask|lraspp")
_NO_SEGMENTS = re.compile(
    r"depth|super|sr(gan|net|cnn)|denois|autoenc|gan\b|generat|restor|inpaint|flow|heatmap|pose|keypoint|vae|colou?ri|"
    r"enhanc|diffusion|reconstr"
)
_COUNTS = ("num_classes", "n_classes", "nclasses", "num_labels", "out_classes", "number_of_classes")
_LOGIT_NAMES, _BOX_NAMES = ("logits", "pred_logits"), ("boxes", "pred_boxes")


@dataclass(frozen=True)
class Meaning:
    """What is served for a picture, and what says so."""

    task: str
    said_by: str
    activation: str | None = None
    outputs: tuple[str, ...] | None = None
    """Names for the outputs, if they need others than the model gives them."""
    detection: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Unsaid:
    """Why nothing says what the outputs mean, and the options that would."""

    why: str
    options: tuple[str, ...]

    @property
    def hint(self) -> str:
        """What to type: all of the options, or one of several tasks and handlers."""
        is_all = any(option.startswith("--set") for option in self.options)
        return (" " if is_all else ", or ").join(self.options)


@dataclass(frozen=True)
class Trace:
    """A run of a network on pictures."""

    network: nn.Module
    picture: tuple[int, int, int]
    outputs: tuple[torch.Tensor, ...]
    names: tuple[str, ...] | None
    endings: tuple[str, ...]
    """The operator that made the values of each output."""
    last: str
    """The path of the last layer with parameters that ran."""


def trace(network: nn.Module, pictures: torch.Tensor, names: tuple[str, ...] | None) -> Trace:
    ran: list[str] = []
    leaves = [(name, layer) for name, layer in network.named_modules() if not any(True for _ in layer.children())]
    layers = [(name, layer) for name, layer in leaves if any(True for _ in layer.parameters())]
    hooks = [layer.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, layer in layers]
    tracker = EndingTracker()
    try:
        with torch.no_grad(), tracker:
            outputs = flat_outputs(network(pictures))
    finally:
        for hook in hooks:
            hook.remove()
    endings = tuple(tracker.ending(value) for value in outputs)
    channels, height, width = pictures.shape[1:]
    return Trace(network, (channels, height, width), outputs, names, endings, ran[-1] if ran else "")


class EndingTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers which operator made the values that lie in a memory, also after views, copies and choices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By address. The memory is kept, so that no other tensor gets the same address.
        self._made: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def ending(self, value: torch.Tensor) -> str:
        """The name of the operator; empty if it is not known."""
        return self._made.get(value.untyped_storage().data_ptr(), (None, ""))[1]

    def is_sigmoid(self, value: torch.Tensor) -> bool:
        return self.ending(value) in _SIGMOIDS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        sources = [value for value in pytree.tree_leaves(args) if isinstance(value, torch.Tensor)]
        endings = {self.ending(value) for value in sources}
        if name in _MOVING:
            name = endings.pop() if len(endings) == 1 or name not in ("cat", "stack") else name
        known = {value.untyped_storage().data_ptr() for value in sources}
        output = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(output):
            if not isinstance(value, torch.Tensor):
                continue
            storage = value.untyped_storage()
            # A view of an argument holds the same values.
            if func._schema.is_mutable or storage.data_ptr() not in known:
                self._made[storage.data_ptr()] = (storage, name)
        return output


def read_meaning(traced: Trace) -> Meaning | Unsaid | None:
    """What the outputs mean; None if they have no form that a task of pictures has."""
    if isinstance(traced.network, YoloNetwork):
        return Meaning("detect", "its class in ultralytics", "none", detection=traced.network.detection)
    shapes = [tuple(value.shape[1:]) for value in traced.outputs]
    names = traced.names or ()
    if any("box" in name for name in names) or _looks_like_boxes(shapes):
        return _read_detection(traced)
    if len(shapes) == 1 and len(shapes[0]) == 1 and shapes[0][0] > 1:
        return _read_numbers(traced, shapes[0][0])
    if pooled := _read_pooled(names, shapes):
        return pooled
    maps = [at for at, shape in enumerate(shapes) if len(shape) == 3]
    if maps and (len(shapes) == 1 or names[:1] == ("out",)) and _covers(traced, shapes[0]):
        return _read_map(traced, shapes[0][0])
    return None


def meaning_of_task(traced: Trace, task: str) -> Meaning | Unsaid:
    """What the outputs mean, if the user says what the task is."""
    read = read_meaning(traced)
    if isinstance(read, Meaning) and read.task == task:
        return read
    said = f"`--task {task}`"
    shapes, ending = [tuple(value.shape[1:]) for value in traced.outputs], traced.endings[0]
    shown = ", ".join(str(list(shape)) for shape in shapes)
    if task == "detect":
        if not (any("box" in name for name in traced.names or ()) or _looks_like_boxes(shapes)):
            return _unsaid(f"its outputs {shown} are no boxes with scores", "--handler tensor")
        return read if isinstance(read, Unsaid) else _unsaid(f"its outputs {shown} are no boxes", "--handler tensor")
    sides = {"classify": 1, "embed": 1, "segment": 3}[task]
    if not shapes or len(shapes[0]) != sides or (len(shapes) > 1 and task != "segment"):
        why = f"`task: {task}` has one output of {sides} sides, but its outputs are {shown}"
        return _unsaid(why, "--handler tensor")
    if task == "embed":
        return Meaning(task, said, outputs=("embedding",))
    votes = {kind for kind, _ in _losses(traced.network)}
    value = traced.outputs[0].to(torch.float32)
    if ending in _SIGMOIDS or (ending != "_log_softmax" and task == "classify" and _sums_to_one(value, ending)):
        return Meaning(task, said, "none")
    if task == "segment":
        outputs = ("scores", *(traced.names or ())[1:]) if len(shapes) > 1 else None
        return Meaning(task, said, "sigmoid" if shapes[0][0] == 1 else "softmax", outputs)
    return Meaning(task, said, "sigmoid" if votes == {"sigmoid"} and shapes[0][0] > 1 else "softmax")


def _read_numbers(traced: Trace, count: int) -> Meaning | Unsaid:
    """What [count] numbers for a picture mean."""
    value, ending = traced.outputs[0].to(torch.float32), traced.endings[0]
    if not traced.outputs[0].is_floating_point():
        return _unsaid(f"its {count} whole numbers for a picture are no scores", "--handler tensor")
    config = _configured(traced.network)
    problem = getattr(config, "problem_type", None)
    votes = dict(_votes(traced, count))
    if problem == "regression" or votes.get("number"):
        said = votes.get("number") or "`problem_type: regression`"
        why = f"its {count} numbers for a picture are no scores of classes, as {said} says"
        return _unsaid(why, "--handler tensor", "--task embed", "--task classify")
    classes, embedding = votes.get("classes"), votes.get("embedding")
    if ending == "_log_softmax" or _sums_to_one(value, ending):
        said = classes or f"its last operator, `{ending.strip('_')}`"
        return Meaning("classify", said, "none" if ending != "_log_softmax" else "softmax")
    if classes and embedding:
        why = f"its {count} numbers for a picture may be scores of classes, as {classes} says, or an embedding, as"
        return _unsaid(f"{why} {embedding} says", "--task classify", "--task embed")
    if ending in _SIGMOIDS:
        return Meaning("classify", classes or "the sigmoid at its end, a score for each class", "none")
    if embedding:
        return Meaning("embed", embedding, outputs=("embedding",))
    if classes is None:
        why = f"nothing says whether its {count} numbers for a picture are scores of classes or an embedding"
        return _unsaid(why, "--task classify", "--task embed")
    is_many = problem == "multi_label_classification" or "sigmoid" in votes
    return Meaning("classify", classes, "sigmoid" if is_many else "softmax")


def _votes(traced: Trace, count: int) -> Iterator[tuple[str, str]]:
    """What speaks for `classes`, `embedding`, or a `number` that is neither, each with the words that say it; also
    `sigmoid`, if classes do not exclude each other. A later one of the same kind counts more."""
    network, ending = traced.network, traced.endings[0]
    value = traced.outputs[0].to(torch.float32)
    layer = network.get_submodule(traced.last) if traced.last else network
    is_linear = getattr(layer, "out_features", getattr(layer, "out_channels", None)) == count
    parts = [part for part in traced.last.lower().split(".") if not part.isdigit()]
    if parts and is_linear and any(map(_CLASSES.match, parts)):
        yield "classes", f"the name of its last layer, `{traced.last}`"
    if is_linear and "classifier" in type(network).__name__.lower():
        yield "classes", f"the name `{type(network).__name__}`"
    kind = re.sub("backbone|features?", "", type(network).__name__.lower())
    if named := next((part for part in (*parts[-1:], kind) if _NO_CLASSES.search(part)), None):
        yield ("embedding" if _EMBEDDING.search(named) else "number"), f"the name `{named}`"
    for name in traced.names or ():
        if _CLASSES.match(name) or _EMBEDDING.search(name):
            yield ("classes" if _CLASSES.match(name) else "embedding"), f"the name of its output, `{name}`"
    if bool(((value.norm(dim=-1) - 1).abs() < _ROUNDING).all()) and ending != "_softmax":
        yield "embedding", "their length of 1"
    for loss, said in _losses(network):
        yield {"softmax": "classes", "sigmoid": "classes"}.get(loss, loss), said
        if loss == "sigmoid":
            yield "sigmoid", said
    for name, inner in _outer_modules(network, traced.last):
        for field in _COUNTS:
            stated = getattr(inner, field, None)
            if isinstance(stated, int) and stated == count and is_linear:
                yield "classes", f"`{field}` of `{name or type(inner).__name__}`"
            elif isinstance(stated, int) and stated == 0:
                yield "embedding", f"`{field}`, which is 0"
    config = _configured(network)
    if config is not None and type(network).__name__.endswith("ForImageClassification"):
        yield "classes", f"its class, `{type(network).__name__}`"


def _read_pooled(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Meaning | None:
    """An embedding among several outputs, which is called so."""
    for name in ("embedding", "image_embeds", "pooler_output"):
        if name in names and len(shapes[names.index(name)]) == 1:
            renamed = tuple("embedding" if each == name else each for each in names)
            return Meaning("embed", f"the name of its output `{name}`", outputs=renamed)
    return None


def _read_map(traced: Trace, count: int) -> Meaning | Unsaid:
    """What count numbers for each pixel mean."""
    value, ending = traced.outputs[0].to(torch.float32), traced.endings[0]
    what = f"its {count} numbers for each pixel" if count > 1 else "its number for each pixel"
    names = {type(traced.network).__name__, *(type(inner).__name__ for inner in traced.network.children())}
    names |= {base.__name__ for base in type(traced.network).__mro__} | {*(traced.names or ())}
    words = " ".join(sorted(name.lower() for name in names))
    losses = dict(_losses(traced.network))
    if "number" in losses or _NO_SEGMENTS.search(words):
        said = losses.get("number") or f"the name `{_NO_SEGMENTS.search(words).group()}`"  # type: ignore[union-attr]
        return _unsaid(f"{what} are no scores of classes, as {said} says", "--task segment", "--handler tensor")
    named = next((name for name in sorted(names, key=len) if _SEGMENTS.search(name.lower())), None)
    said = f"the name `{named}`" if named else losses.get("softmax", losses.get("sigmoid", ""))
    if traced.names and traced.names[0] == "out" and type(traced.network).__module__.startswith("torchvision."):
        said = said or "its output `out`"
    # Such networks also make pictures of pictures, as to remove noise.
    is_plain = (
        count == traced.picture[0] and not re.search("seg|mask", words) and ending not in (*_SIGMOIDS, "_softmax")
    )
    if not said or (is_plain and not losses):
        why = f"nothing says whether {what} are scores of classes or a picture"
        return _unsaid(why, "--task segment", "--handler tensor")
    outputs = tuple("scores" if name == "out" else name for name in traced.names) if traced.names else None
    if outputs and "scores" not in outputs:
        outputs = ("scores", *outputs[1:])
    if count > 1 and ending in _SIGMOIDS:
        why = f"{what} end in a sigmoid, so a pixel may have several classes, which one mask cannot show"
        return _unsaid(why, "--handler tensor")
    if count > 1:
        is_share = bool((value >= 0).all() and ((value.sum(1) - 1).abs() < _ROUNDING).all())
        return Meaning("segment", said, "none" if is_share else "softmax", outputs)
    return Meaning("segment", said, "none" if ending in _SIGMOIDS else "sigmoid", outputs)


def _read_detection(traced: Trace) -> Meaning | Unsaid:
    names = list(traced.names or ())
    option = "--set 'outputs: [boxes, scores]'", "--set 'detection: {boxes: xyxy, unit: pixels}'"
    options = ("--task detect", *option, "--set 'activation: none'")
    if not names:
        return _unsaid("its outputs may be boxes and scores, but have no names", *options)
    boxes = next((name for name in _BOX_NAMES if name in names), None)
    scores = next((name for name in ("scores", *_LOGIT_NAMES) if name in names), None)
    if boxes is None or scores is None:
        return _unsaid(f"its outputs {_quoted(names)} do not say which are boxes and which are their scores", *options)
    box, score = (traced.outputs[names.index(name)] for name in (boxes, scores))
    renamed = tuple({boxes: "boxes", scores: "scores"}.get(name, name) for name in names)
    kind = str(getattr(_configured(traced.network), "model_type", ""))
    if scores in _LOGIT_NAMES:
        if kind not in (*WITH_BACKGROUND, *WITHOUT_BACKGROUND):
            why = f"nothing says what makes scores of its `{scores}`, or whether one of their classes means no object"
            return _unsaid(why, *options[:-1], "--set 'activation: sigmoid'")
        has_none = kind in WITH_BACKGROUND
        detection: dict[str, Any] = {"boxes": "cxcywh", "unit": "fraction"} | (
            {"background": "last"} if has_none else {}
        )
        return Meaning("detect", f"its kind, `{kind}`", "softmax" if has_none else "sigmoid", renamed, detection)
    if not score.is_floating_point() or (
        "labels" in names and traced.outputs[names.index("labels")].is_floating_point()
    ):
        return _unsaid("its `scores` are whole numbers, or its `labels` are none", *options)
    ending, corners = traced.endings[names.index(scores)], box.reshape(-1, 4)
    if ending not in (*_SIGMOIDS, "_softmax") and bool((score < 0).any() or (score > 1).any()):
        return _unsaid("its `scores` are not from 0 to 1", *options[:-1], "--set 'activation: sigmoid'")
    if traced.endings[names.index(boxes)] in _SIGMOIDS or bool((corners.abs() <= 1).all()):
        why = f"its `{boxes}` are shares of the picture, of corners or of centres"
        return _unsaid(why, "--task detect", "--set 'detection: {boxes: cxcywh, unit: fraction}'")
    if bool((corners[:, 2:] < corners[:, :2]).any()):
        return _unsaid(
            f"its `{boxes}` are not left, top, right and bottom", "--task detect", option[1].replace("xyxy", "cxcywh")
        )
    return Meaning("detect", f"the names of its outputs, {_quoted(names)}", "none", renamed, {"boxes": "xyxy"})


def _looks_like_boxes(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether one of several outputs has four numbers for each row of another."""
    boxes = [shape for shape in shapes if len(shape) == 2 and shape[1] == 4]
    return any(shape[:1] == other[:1] for shape in boxes for other in shapes if other is not shape)


def _losses(network: nn.Module) -> Iterator[tuple[str, str]]:
    """The kinds of losses that the network holds or that its file computes, each with the words that say it."""
    for layer in network.modules():
        for kind, pattern in _LOSSES.items():
            if type(layer).__module__.startswith("torch.nn.modules.loss") and re.search(pattern, type(layer).__name__):
                yield kind, f"its `{type(layer).__name__}`"
    module = sys.modules.get(type(network).__module__)
    if module is None or not str(type(network).__module__).startswith("marina_user_"):
        return
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return
    for kind, pattern in _LOSSES.items():
        if found := re.search(pattern, source):
            yield kind, f"`{found.group()}` in its file"


def _outer_modules(network: nn.Module, last: str) -> Iterator[tuple[str, nn.Module]]:
    """The network, and the modules on the way to its last layer, from the innermost."""
    parts = last.split(".") if last else []
    for length in range(len(parts), -1, -1):
        name = ".".join(parts[:length])
        yield name, network.get_submodule(name)


def _configured(network: nn.Module) -> Any:
    """The configuration of a model of `transformers`, alone or as the only part of another module."""
    for module in (network, *(network.children() if len([*network.children()]) == 1 else ())):
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "model_type"):
            return config
    return None


def _covers(traced: Trace, shape: tuple[int, ...]) -> bool:
    """Whether a map has a value for each pixel, or for each of equal blocks of them."""
    _, height, width = traced.picture
    same = shape[1:] == (height, width)
    config = type(traced.network).__name__.endswith("ForSemanticSegmentation")
    return same or (config and height % shape[1] == 0 and width % shape[2] == 0)


def _sums_to_one(value: torch.Tensor, ending: str) -> bool:
    is_share = bool((value >= 0).all() and ((value.sum(-1) - 1).abs() < _ROUNDING).all())
    return ending == "_softmax" or is_share


def _unsaid(why: str, *options: str) -> Unsaid:
    return Unsaid(why, options)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
