"""Loads `model.source` and `model.weights` as an eager fp32 network with its inputs.

A source is a torchvision model, an encoder's folder, a factory in a Python file, or an exported program. Whatever is
missing or wrong raises a SourceError that says what to type."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import nn

from marina.archiver.encoders import load_encoder
from marina.archiver.exported_source import input_values, notes_on_inputs, program_network, read_program
from marina.archiver.picture_folders import load_picture_folder
from marina.archiver.quantize import quantised_kind
from marina.archiver.torchvision_import import import_torchvision
from marina.archiver.user_code import import_file, running_user_code
from marina.archiver.weights import load_weights
from marina.archiver.weights.whole_module import is_scripted, load_module
from marina.archiver.yolo import YoloNetwork, as_detector
from marina.config.errors import SourceError, listed, nearest
from marina.config.hf_folder import pickled_weights
from marina.config.record import Lengths, Port
from marina.config.sections import Image, Tensor, Varying
from marina.config.spec import Spec
from marina.config.torchvision_models import model_error
from marina.handlers.networks import keyword_only


@dataclass(frozen=True)
class Source:
    """An eager fp32 network in evaluation mode, and the inputs of the graph around it."""

    network: nn.Module
    image: Image | None
    inputs: tuple[Port, ...]
    labels: tuple[str, ...] | None
    only_batch: int | None = None
    """The batch size that an exported program is fixed to; None if any will do."""
    lengths: Lengths | None = None
    notes: tuple[str, ...] = ()
    """What to tell the user: which weights were chosen of several."""


def load_source(spec: Spec) -> Source:
    """The network of a spec with its weights, on the CPU."""
    source = spec.model.source
    if source.startswith("torchvision:"):
        return _from_torchvision(spec, source.removeprefix("torchvision:"))
    if spec.model.folder is not None and spec.model.handler == "image":
        loaded = load_picture_folder(spec)
        notes = (*loaded.notes, *_notes_on_pickle(spec))
        return _make_source(spec, loaded.network, loaded.image, loaded.labels, notes=notes)
    if spec.model.folder is not None:
        network, ports, labels = load_encoder(spec)
        labels, lengths = _labels(spec, None) or labels, _buckets(spec.encoding.varying)
        return Source(network, None, ports, labels, lengths=lengths, notes=_notes_on_pickle(spec))
    if source.endswith(".pt2"):
        return _from_program(spec, spec.path(source))
    if spec.model.saved_whole:
        return _from_saved(spec, spec.path(source))
    return _from_file(spec, source)


def _from_torchvision(spec: Spec, name: str) -> Source:
    if wrong := model_error(name):
        raise SourceError(f"{spec.file}: `model.source`: {wrong[0]}", hint=wrong[1])
    import_torchvision()
    from torchvision import models

    choices = models.get_model_weights(name)
    weights = spec.model.weights or "random"
    chosen = choices.__members__.get(weights)
    if chosen is None and weights != "random" and spec.model.weights_file is None:
        raise SourceError(
            f"{spec.file}: `model.weights`: got `{weights}`, allowed: {listed(choices.__members__)}, `random` or a file"
        )
    notes: tuple[str, ...] = ()
    network = _call_factory(spec, lambda: models.get_model(name, weights=_downloaded(spec, chosen)))
    downloaded = next((entry for entry in choices if entry.url.endswith(f"/{Path(weights).name}")), None)
    entry = chosen or downloaded or choices["DEFAULT"]
    if chosen is None and weights != "random":
        notes = load_weights(f"{spec.file}: `model.weights`", spec.model.source, network, spec.path(weights))
        if downloaded is not None and hasattr(network, "transform_input"):
            # As torchvision sets it for its own weights, which expect another normalisation.
            network.transform_input = True  # type: ignore[assignment]
        if downloaded is None and spec.model.image is None:
            text = f"pictures are scaled and normalised as for torchvision's `{entry.name}`: set `model.image` if"
            notes += (f"{text} `{weights}` was trained otherwise",)
    labels = entry.meta.get("categories") if spec.model.labels == "imagenet" else None
    return _make_source(spec, network, spec.model.image or _preset_image(entry.transforms()), labels, notes=notes)


def _downloaded(spec: Spec, weights: object) -> object:
    """The same weights entry, after downloading its file to torch's cache, so that a failed download has its own
    error."""
    if weights is None:
        return None
    try:
        weights.get_state_dict(progress=sys.stderr.isatty(), check_hash=True)  # type: ignore[attr-defined]
    except (URLError, OSError, RuntimeError) as err:
        raise SourceError(
            f"{spec.file}: `model.weights`: `{spec.model.weights}` could not be downloaded: {err}",
            hint="copy the file to this machine and use `weights: ./FILE`, or `weights: random` to try the rest",
        ) from err
    return weights


def _preset_image(preset: object) -> Image | None:
    """The pictures that a torchvision preset expects; None for presets of other tasks than classification."""
    if not hasattr(preset, "crop_size"):
        return None
    size = preset.crop_size[0]
    return Image(
        height=size,
        width=size,
        resize=preset.resize_size[0],  # type: ignore[attr-defined]
        mean=tuple(preset.mean),  # type: ignore[attr-defined]
        std=tuple(preset.std),  # type: ignore[attr-defined]
        interpolation=preset.interpolation.value,  # type: ignore[attr-defined]
    )


def _from_file(spec: Spec, source: str) -> Source:
    text, _, factory_name = source.partition(":")
    module = import_file(spec, spec.path(text), "model.source")
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        close = nearest(factory_name, functions)
        raise SourceError(
            f"{spec.file}: `model.source`: `{text}` has no function `{factory_name}`",
            hint=f"source: {text}:{close}" if close else None,
        )
    if missing := required_arguments(factory):
        called = f"{factory_name}({', '.join(f'{name}=…' for name in missing)})"
        raise SourceError(
            f"{spec.file}: `model.source`: `{source}` needs {listed(missing)}, allowed: no required arguments",
            hint=f"in {text}: `def build(): return {called}`, then `source: {text}:build`",
        )
    network = _call_factory(spec, lambda: factory if isinstance(factory, nn.Module) else factory())
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise SourceError(f"{spec.file}: `model.source`: `{source}` returned `{kind}`, allowed: a `torch.nn.Module`")
    if isinstance(network, torch.jit.ScriptModule):
        raise SourceError(
            f"{spec.file}: `model.source`: `{source}` returned TorchScript, which cannot be exported, allowed: the "
            "network's own Python code",
            hint="return the network that was scripted; `torch.jit.load(FILE).state_dict()` has its weights",
        )
    _check_plain(spec, network)
    notes: tuple[str, ...] = ()
    if spec.model.weights and spec.model.weights != "random":
        file = spec.path(spec.model.weights)
        notes = load_weights(f"{spec.file}: `model.weights`", source, network, file)
    return _make_source(spec, network, spec.model.image, None, notes=notes)


def _check_plain(spec: Spec, network: nn.Module) -> None:
    """Raises SourceError if the network is not in fp32 or has no values, since answers are compared with it."""
    if kind := quantised_kind(network):
        text = f"`{spec.model.source}` holds a quantised `{kind}`, allowed: float32 values"
        hint = "return the network before it is quantised, and choose `precision: int8` in the spec"
        raise SourceError(f"{spec.file}: `model.source`: {text}", hint=hint)
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        is_half = value.dtype in (torch.bfloat16, torch.float16)
        if is_half or value.is_meta:
            kind = str(value.dtype).removeprefix("torch.") if is_half else "on the device `meta`, without values"
            raise SourceError(
                f"{spec.file}: `model.source`: `{name}` of `{spec.model.source}` is {kind}, allowed: float32 values",
                hint="return `network.float()`, and choose `precision: bf16` in the spec" if is_half else None,
            )
        if value.is_complex() and spec.model.precision in ("bf16", "fp16"):
            text = f"got `{spec.model.precision}`, but `{name}` of `{spec.model.source}` is complex, allowed: `fp32`"
            raise SourceError(f"{spec.place('model', 'precision')}: {text}")


def required_arguments(factory: object) -> list[str]:
    """The names of the arguments that a factory requires; none if it is a network and not a factory."""
    if isinstance(factory, nn.Module):
        return []
    try:
        parameters = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    named = [entry for entry in parameters if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)]
    return [entry.name for entry in named if entry.default is entry.empty]


def _call_factory(spec: Spec, factory: Callable[[], nn.Module]) -> nn.Module:
    """Calls a factory with torch seeded, so that `random` weights are the same every time."""
    torch.manual_seed(0)
    with running_user_code(f"{spec.file}: `model.source`: `{spec.model.source}`", spec):
        return factory()


def _notes_on_pickle(spec: Spec) -> tuple[str, ...]:
    name = pickled_weights(spec.path(spec.model.folder or ""))
    return (f"the weights are in `{name}`: only tensors are read of a pickle, nothing is run",) if name else ()


def _from_program(spec: Spec, file: Path) -> Source:
    program = read_program(f"{spec.file}: `model.source`", file)
    values = input_values(f"{spec.file}: `model.source`", program)
    # An input that is a single number has no dimension for rows, so all rows would get the same.
    batches = [value.shape[0] if value.ndim else 1 for value in values.values()]
    only = next((batch for batch in batches if isinstance(batch, int)), None)
    if spec.model.inputs is None:
        _check_sizes_fixed(spec, values)
    ports = tuple(
        Port(name=name, shape=_fixed_sides(value), dtype=str(value.dtype).removeprefix("torch."))
        for name, value in values.items()
    )
    image, network, notes = spec.model.image, program_network(program), notes_on_inputs(program)
    return _make_source(spec, network, image, None, ports=ports, only_batch=only, notes=notes)


def _from_saved(spec: Spec, file: Path) -> Source:
    network, notes = load_module(f"{spec.file}: `model.source`", file, trust=spec.model.trust_pickle)
    image = spec.model.image
    network = as_detector(network, (image.height, image.width) if image is not None else None)
    _check_plain(spec, network)
    # What TorchScript computes of a size is a fixed number in the exported program.
    only = 1 if is_scripted(network) else None
    labels = network.names if isinstance(network, YoloNetwork) else None
    return _make_source(spec, network, image, labels, only_batch=only, notes=notes)


def _fixed_sides(value: torch.Tensor) -> tuple[int, ...]:
    """The sides of a row, with 1 for a dynamic one, which the spec's `inputs` give. Its `int` would fix it in the
    program."""
    return tuple(side if isinstance(side, int) else 1 for side in value.shape[1:])


def _check_sizes_fixed(spec: Spec, values: dict[str, Any]) -> None:
    """Raises SourceError if an input's size is dynamic: the program does not say which sizes will be served."""
    for name, value in values.items():
        sides = [side if isinstance(side, int) else "{max: 512}" for side in value.shape[1:]]
        if "{max: 512}" in sides:
            shape = ", ".join(map(str, sides))
            raise SourceError(
                f"{spec.file}: `model.inputs`: missing: `{spec.model.source}` takes `{name}` in several sizes, "
                "but does not say the largest that will be sent",
                hint=f"inputs: {{{name}: {{shape: [{shape}], dtype: {str(value.dtype).removeprefix('torch.')}}}}}",
            )


def _make_source(
    spec: Spec,
    network: nn.Module,
    image: Image | None,
    labels: Sequence[str] | None,
    *,
    ports: tuple[Port, ...] = (),
    only_batch: int | None = None,
    notes: tuple[str, ...] = (),
) -> Source:
    """The source with its inputs, from the spec's `image` or `inputs`; `ports` are those of an exported program."""
    model = spec.model
    if not ports:
        network = network.eval()
    if image is not None and model.handler != "tensor":
        ports = (Port(name="image", shape=(image.height, image.width, image.channels), dtype="uint8"),)
    elif model.inputs is not None:
        if ports:
            _check_order(spec, [port.name for port in ports], ())
        elif ordered := _ordered_arguments(network):
            _check_order(spec, ordered, keyword_only(network))
        ports = tuple(_port(name, tensor) for name, tensor in model.inputs.items() if not tensor.mask_of)
    if image is not None and model.task in ("detect", "embed", "segment"):
        image = image.model_copy(update={"top_k": 0})
    if image is not None and model.mask_size == "picture" and (image.fit == "crop" or image.resize is not None):
        text = "got `picture`, but parts of it are cut off before the model sees it"
        raise SourceError(
            f"{spec.place('model', 'mask_size')}: {text}", hint="image: {fit: squash, …} without `resize`"
        )
    if model.handler == "image" and image is None:
        raise SourceError(
            f"{spec.file}: `model.image`: missing: `{model.source}` does not say what its pictures look like",
            hint="add `image: {height: 224, width: 224}` under `model`",
        )
    has_own = model.folder is not None or isinstance(network, YoloNetwork)
    labelled = _labels(spec, labels) or (tuple(labels) if labels and has_own else None)
    return Source(network, image, ports, labelled, only_batch, _lengths(spec), notes)


def _check_order(spec: Spec, ordered: list[str], named: tuple[str, ...]) -> None:
    """Raises SourceError if an input has the name of one argument, but is passed as another, by its position."""
    inputs = list(spec.model.inputs or {})
    passed = [*ordered[: len(inputs) - len(named)], *named]
    for name, argument in zip(inputs, passed, strict=False):
        if name != argument and name in (*ordered, *named):
            raise SourceError(
                f"{spec.place('model', 'inputs', name)}: it would be passed to the model as `{argument}`, allowed: "
                f"the order of the model's arguments, {', '.join(f'`{argument}`' for argument in passed)}"
            )


def _ordered_arguments(network: nn.Module) -> list[str]:
    """The names of a network's arguments that are passed by position; none if it takes any number of them."""
    parameters = inspect.signature(network.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _port(name: str, tensor: Tensor) -> Port:
    varies = next((place for place, side in enumerate(tensor.shape) if not isinstance(side, int)), None)
    shape = tensor.largest_shape
    return Port(name=name, shape=shape, dtype=tensor.dtype, min=tensor.min, max=tensor.max, varies=varies)


def _lengths(spec: Spec) -> Lengths | None:
    """The lengths that varying inputs are padded to, and the position of their mask; None if nothing varies."""
    inputs = list((spec.model.inputs or {}).values())
    varying = next((tensor.varying for tensor in inputs if tensor.varying), None)
    if varying is None:
        return None
    mask = next((place for place, tensor in enumerate(inputs) if tensor.mask_of), None)
    if mask is None:
        return _buckets(varying)
    given = "dtype" in inputs[mask].model_fields_set
    return _buckets(varying).model_copy(update={"mask": mask, "mask_dtype": inputs[mask].dtype if given else "bool"})


def _buckets(varying: Varying) -> Lengths:
    return Lengths(buckets=varying.sizes, dynamic=varying.dynamic)


def _labels(spec: Spec, categories: Sequence[str] | None) -> tuple[str, ...] | None:
    labels = spec.model.labels
    if labels is None:
        return None
    if labels == "imagenet":
        if categories is None:
            import_torchvision()
            from torchvision.models import ResNet50_Weights

            categories = ResNet50_Weights.DEFAULT.meta["categories"]
        return tuple(categories)
    file = spec.path(labels)
    if not file.is_file():
        raise SourceError(f"{spec.file}: `model.labels`: no such file: `{file}`")
    try:
        # Windows marks UTF-8 by three bytes, which would be part of the first label.
        return tuple(file.read_text(encoding="utf-8-sig").rstrip("\n").split("\n"))
    except UnicodeDecodeError as err:
        raise SourceError(f"{spec.file}: `model.labels`: `{file}` is not UTF-8: {err}") from err
