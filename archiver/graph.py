"""The graph around a network: all tensor work between a request's bytes and its answer.

It takes uint8 pixels or typed tensors, and returns float32 answers."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from marina.archiver.encoders import OUTPUTS, EncoderGraph, problem_type
from marina.archiver.inferring import output_names
from marina.archiver.meaning import EndingTracker
from marina.archiver.rows import TRIED_ROWS
from marina.archiver.sources import Source
from marina.config.errors import SourceError
from marina.config.record import Port
from marina.config.sections import Activation
from marina.config.spec import Spec
from marina.handlers.networks import DTYPES, ImageGraph, TensorGraph, flat_outputs

# What to do with a model of pictures whose numbers are no scores of classes.
_INSTEAD = "write a handler of your own, with `top_k: 0` in `model.image`; or use `handler: tensor`"
# Sums of probabilities and lengths of vectors may differ from 1 by as much.
_ROUNDING = 1e-3


def build_graph(spec: Spec, source: Source, precision: str) -> nn.Module:
    """The graph around the network in a precision; the source's own network is not changed."""
    dtype = DTYPES[precision]
    network = source.network if dtype == torch.float32 else copy.deepcopy(source.network).to(dtype)
    network = network.to(spec.serving.device)
    if spec.model.encodes:
        return EncoderGraph(network, spec)
    if source.image is not None and source.inputs[0].name == "image":
        image = source.image
        mean, std = image.per_channel(image.mean), image.per_channel(image.std)
        graph = ImageGraph(
            network,
            dtype,
            mean=mean,
            std=std,
            width=image.width,
            top_k=image.top_k,
            activation=activation(spec),
        )
        return graph.to(spec.serving.device)
    return TensorGraph(network, dtype)


def activation(spec: Spec) -> Activation:
    """What makes scores of the numbers that the network returns for pictures."""
    return spec.model.activation or ("none" if spec.model.task == "detect" else "softmax")


def examples(spec: Spec, source: Source, rows: int) -> tuple[torch.Tensor, ...]:
    """Seeded random inputs, for export and for checks without calibration data. Inputs that vary have their largest
    size; if the model takes a mask, it is among them."""
    generator = torch.Generator().manual_seed(0)
    values = [_random(port, rows, generator).to(spec.serving.device) for port in source.inputs]
    lengths = source.lengths
    if lengths is not None and lengths.mask is not None:
        mask = torch.ones(rows, lengths.buckets[-1], dtype=getattr(torch, lengths.mask_dtype))
        values.insert(lengths.mask, mask.to(spec.serving.device))
    return tuple(values)


def _random(port: Port, rows: int, generator: torch.Generator) -> torch.Tensor:
    if columns := port.by_column():
        return torch.stack([_random(column, rows, generator) for column in columns], dim=-1)
    shape, dtype = (rows, *port.shape), getattr(torch, port.dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).to(torch.bool)
    low, high = (-1.0 if dtype.is_floating_point else 0.0), (255.0 if dtype == torch.uint8 else 1.0)
    if port.min is not None:
        low, high = port.min, max(high, port.min + 1)
    if port.max is not None:
        low, high = low if port.min is not None else min(low, port.max - 1), port.max
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=dtype) * (high - low) + low
    # The limits of the spec may be wider than those of the type.
    least, most = torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**63 - 2)
    bounds = max(int(low), least), min(int(high), most) + 1
    return torch.randint(*bounds, shape, generator=generator, dtype=dtype)


def output_ports(
    spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...], *, hint: str | None = None
) -> tuple[Port, ...]:
    """The names, shapes and types of the graph's outputs. Raises SourceError if the graph fails, with the hint, or if
    an output does not have one row per input row."""
    rows, answers = inputs[0].shape[0], list[object]()
    hook = graph.get_submodule("network").register_forward_hook(lambda *call: answers.append(call[-1]))
    try:
        with torch.no_grad():
            outputs = graph(*(value.clone() for value in inputs))
    except Exception as err:
        _check_classes(spec, graph, answers)
        shapes = ", ".join(f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}" for value in inputs)
        if spec.model.encodes and "padding token" in str(err):
            hint = "add `pad_token_id` to its `config.json`, the number of a token that no text holds"
        elif spec.model.encodes and isinstance(err, (AttributeError, TypeError)):
            hint = "use a model of another architecture, or `source: ./model.py:build` with a network of your own"
        elif spec.model.source.endswith(".pt2") and ".size()[0]" in str(err):
            hint = "use other `batch_sizes`, or export the program with a dynamic first dimension without limits"
        elif spec.model.encodes:
            hint = "lower `max_tokens` of `model.encoding`: the model may take fewer tokens than its `config.json` says"
        raise SourceError(
            f"{spec.file}: `model.source`: the model fails on inputs {shapes}: {type(err).__name__}: {err}",
            hint=hint or "compare `model.image` or `model.inputs` with what the model takes",
        ) from err
    finally:
        hook.remove()
    _check_classes(spec, graph, answers)
    where = f"{spec.file}: `model.source`"
    if not outputs:
        raise SourceError(f"{where}: its `forward` returned nothing, allowed: tensors with one row per input row")
    for value in outputs:
        if not _has_rows(value, rows):
            text = f"{where}: got an output {_kind(value)} for {rows} rows, allowed: tensors with one row per input row"
            hint = "`squeeze(-1)` if it is `squeeze()`, which also removes the rows if there is only one"
            if isinstance(answers[-1], list):
                hint = (
                    "return one tensor of what each row has, padded to one size, and beside it how much of that is used"
                )
            raise SourceError(text, hint=hint if rows == 1 and isinstance(value, torch.Tensor) else None)
        if value.is_complex() and spec.model.handler == "tensor":
            text = f"{where}: got an output of complex numbers, which `tensor` cannot answer"
            raise SourceError(text, hint="return `torch.view_as_real(…)`, or write a handler of your own")
    names = _output_names(spec, graph, len(outputs), output_names(answers[-1]) if answers else None)
    if names == spec.model.outputs:
        _check_output_order(spec, names, *answers)
    return tuple(
        Port(name=name, shape=tuple(value.shape[1:]), dtype=str(value.dtype).removeprefix("torch."))
        for name, value in zip(names, outputs, strict=True)
    )


def _check_output_order(spec: Spec, names: tuple[str, ...], answer: object) -> None:
    """Raises SourceError if an output has the name that the model gives to another one."""
    own = output_names(answer) or ()
    for name, key in zip(names, own, strict=False):
        if name != key and name in own:
            text = f"got `{name}` for the model's `{key}`, allowed: its order, {', '.join(f'`{key}`' for key in own)}"
            raise SourceError(f"{spec.place('model', 'outputs')}: {text}")


def check_output_sizes(spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Raises SourceError if an output has another size for other values of the inputs, as `nonzero` has, or if all are
    empty."""
    size, first = min(spec.model.batch_sizes), dict[str, tuple[int, ...]]()
    for begin in range(0, min(TRIED_ROWS, len(inputs[0]) - size + 1), size):
        for port in output_ports(spec, graph, tuple(value[begin : begin + size] for value in inputs)):
            if port.shape != first.setdefault(port.name, port.shape):
                raise SourceError(
                    f"{spec.file}: `model.source`: its output `{port.name}` is {list(first[port.name])} for one input "
                    f"and {list(port.shape)} for another, allowed: one size for all values of the inputs",
                    hint="pad it in `forward` to the largest size, and return beside it how much of that is used",
                )
    if all(0 in shape for shape in first.values()):
        got = ", ".join(f"`{name}` {list(shape)}" for name, shape in first.items())
        raise SourceError(f"{spec.file}: `model.source`: got {got}, allowed: at least one output with values")


def _check_classes(spec: Spec, graph: nn.Module, answers: Sequence[object]) -> None:
    """Raises SourceError if what a network returned for pictures is not a number for each of two classes or more,
    because the probability of one is always 1."""
    if not answers or not isinstance(graph, ImageGraph) or not graph.top_k:
        return
    shapes = [tuple(value.shape[1:]) for value in flat_outputs(answers[-1]) if isinstance(value, torch.Tensor)]
    if len(shapes) != 1 or len(shapes[0]) != 1 or shapes[0][0] < 2:
        got = ", ".join(str(list(shape)) for shape in shapes) or "nothing"
        raise SourceError(
            f"{spec.file}: `model.source`: the model's output for a picture is {got}, allowed: [N], a number for each "
            "of two classes or more",
            hint=_INSTEAD,
        )


def check_scores(where: str, graph: ImageGraph, pixels: torch.Tensor) -> None:
    """Raises SourceError if the network's numbers for pictures are not scores of classes of which one applies: the
    graph makes them probabilities that add up to 1."""
    tracker = EndingTracker()
    with torch.no_grad(), tracker:
        scores = graph.outputs(pixels)[0]
    is_sigmoid, scores = tracker.is_sigmoid(scores), scores.to(torch.float32)
    problem, hint = problem_type(graph.network), _INSTEAD
    if graph.activation == "none":
        _check_shares(where, scores)
        return
    if bool((scores >= 0).all() and ((scores.sum(-1) - 1).abs() < _ROUNDING).all()):
        answers, hint = "probabilities", "activation: none"
    elif is_sigmoid:
        answers, hint = "a sigmoid for each class", "activation: none"
    elif graph.activation == "sigmoid":
        return
    elif problem == "multi_label_classification":
        answers, hint = f"numbers for `{problem}`, as its configuration says", "activation: sigmoid"
    elif problem == "regression":
        answers = f"numbers for `{problem}`, as its configuration says"
    elif bool(((scores.norm(dim=-1) - 1).abs() < _ROUNDING).all()):
        answers, hint = "vectors of length 1, as embeddings have", "task: embed, and `outputs: [embedding]`"
    else:
        return
    handler = "the handler turns a number for each class into probabilities that add up to 1"
    raise SourceError(f"{where}: the model answers pictures with {answers}, but {handler}", hint=hint)


def _check_shares(where: str, scores: torch.Tensor) -> None:
    """Raises SourceError if numbers that are said to be scores from 0 to 1 are not."""
    low, high = float(scores.min()), float(scores.max())
    if not (low >= 0 and high <= 1):
        text = f"`activation: none` says that the model answers scores from 0 to 1, but they are from {low:.3g} to"
        hint = "activation: softmax, if one class applies; sigmoid, if several may"
        raise SourceError(f"{where}: {text} {high:.3g}", hint=hint)


def _has_rows(value: object, rows: int) -> bool:
    """Whether an output is a plain tensor with this many rows; a sparse or nested one is not."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return False
    return value.ndim > 0 and value.shape[0] == rows


def _kind(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return "nested" if value.is_nested else f"{tuple(value.shape)}{'' if value.layout is torch.strided else ' sparse'}"


def _output_names(spec: Spec, graph: nn.Module, count: int, own: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the outputs: those of the task, of the spec, or, for a task that needs some, the network's own."""
    if isinstance(graph, ImageGraph) and graph.top_k:
        return ("top_probs", "top_indices")
    names = OUTPUTS[str(spec.model.task)] if spec.model.encodes else spec.model.outputs
    if names is None and spec.model.task in ("detect", "embed", "segment") and own:
        names = own
    elif names is None and count == 1 and spec.model.task in ("embed", "segment"):
        names = ("embedding",) if spec.model.task == "embed" else ("scores",)
    if names is None:
        return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))
    if len(names) != count:
        raise SourceError(f"{spec.file}: `model.outputs`: got {len(names)} names, but the model has {count} outputs")
    return names
