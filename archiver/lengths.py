"""Packages models whose inputs vary in length: cuts inputs to a length, and compares answers over all lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from marina.archiver.agreement import compare_tensors, eager_tolerance, run_in_batches
from marina.archiver.calibration import Rows
from marina.archiver.graph import output_ports
from marina.archiver.rows import TRIED_ROWS, RunBatch
from marina.archiver.sources import Source
from marina.config.errors import SourceError
from marina.config.record import Port
from marina.config.spec import Spec
from marina.handlers.lengths import SHORTEST


def request_arguments(source: Source) -> tuple[int, ...]:
    """The positions of the model's arguments that come from a request: all but the mask."""
    mask = source.lengths.mask if source.lengths else None
    count = len(source.inputs) + (mask is not None)
    return tuple(place for place in range(count) if place != mask)


def varying_dimensions(source: Source) -> list[tuple[int, int]]:
    """The position of each argument that varies in length, and its varying dimension, where 0 is the batch."""
    pairs = zip(request_arguments(source), source.inputs, strict=True)
    dimensions = [(place, port.varies + 1) for place, port in pairs if port.varies is not None]
    if source.lengths is not None and source.lengths.mask is not None:
        dimensions.append((source.lengths.mask, 1))
    return dimensions


def typical_length(source: Source) -> int | None:
    """The length of a generated sample: the bucket in the middle. None if nothing varies."""
    return source.lengths.buckets[(len(source.lengths.buckets) - 1) // 2] if source.lengths else None


def compiled_lengths(source: Source) -> tuple[int | None, ...]:
    """The lengths to compile an artifact for; only None if nothing varies or one artifact takes every length."""
    return source.lengths.buckets if source.lengths and not source.lengths.dynamic else (None,)


def cut_to_length(source: Source, rows: Rows, length: int | None) -> Rows:
    """The model's arguments with their varying dimension cut to a length; unchanged if that is None."""
    if length is None:
        return rows
    cut = list(rows)
    for place, dimension in varying_dimensions(source):
        cut[place] = cut[place].narrow(dimension, 0, length).contiguous()
    return tuple(cut)


def mark_varying_outputs(
    spec: Spec, source: Source, graph: nn.Module, ports: tuple[Port, ...], sample: Rows
) -> tuple[Port, ...]:
    """The outputs, each with the dimension that follows the input's length; runs on shorter inputs show which."""
    if source.lengths is None:
        return ports
    longest = source.lengths.buckets[-1]
    hint = f"requests may have any length from {SHORTEST} to {longest}: pad in `forward`, or use a fixed `shape`"
    # The last of these lengths decides; the shortest shows that the model takes it.
    for length in sorted({SHORTEST, max(SHORTEST, longest - 1)}):
        others = output_ports(spec, graph, cut_to_length(source, sample, length), hint=hint)
        marked = tuple(
            port.model_copy(update={"varies": _varying_side(spec, port, other, longest, length)})
            for port, other in zip(ports, others, strict=True)
        )
    return marked


def _varying_side(spec: Spec, port: Port, shorter: Port, longest: int, length: int) -> int | None:
    """The dimension of an output that follows the input's length, by its shapes for the longest and a shorter one."""
    sides = list(zip(port.shape, shorter.shape, strict=False))
    changed = [place for place, (long, short) in enumerate(sides) if long != short]
    if (
        len(port.shape) != len(shorter.shape)
        or len(changed) > 1
        or any(sides[place] != (longest, length) for place in changed)
    ):
        raise SourceError(
            f"{spec.file}: `model.source`: its output `{port.name}` is {list(port.shape)} for a length of {longest} "
            f"and {list(shorter.shape)} for {length}, allowed: a fixed size, or the input's length"
        )
    return changed[0] if changed else None


@dataclass(frozen=True)
class PaddedRows:
    """Rows padded to one width, the length of each, and the reference's answer to each alone and without padding."""

    rows: Rows
    lengths: list[int]
    answers: list[Rows]


def padded_rows(spec: Spec, source: Source, reference: RunBatch, inputs: Rows) -> list[PaddedRows]:
    """The inputs for each bucket that has any. Calibration texts have lengths of their own; others are cut to random
    lengths."""
    assert source.lengths is not None
    are_texts = spec.model.encodes and spec.model.calibration is not None
    lengths = _text_lengths(source, inputs) if are_texts else _random_lengths(source.lengths.buckets, len(inputs[0]))
    answers: list[Rows] = []
    for place, length in enumerate(lengths):
        row = tuple(value[[place]] for value in inputs)
        answers.append(tuple(answer.cpu() for answer in reference(list(cut_to_length(source, row, length)))))
    by_bucket = []
    for bucket in source.lengths.buckets:
        # Rows of shorter buckets too: a worker puts a short row into a larger bucket when that is cheaper.
        places = [place for place, length in enumerate(lengths) if length <= bucket]
        if not places:
            continue
        own_lengths = [lengths[place] for place in places]
        width = max(own_lengths) if source.lengths.dynamic else bucket
        rows = cut_to_length(source, tuple(value[places] for value in inputs), width)
        by_bucket.append(
            PaddedRows(_padded(source, rows, own_lengths), own_lengths, [answers[place] for place in places])
        )
    return by_bucket


def _random_lengths(buckets: tuple[int, ...], count: int) -> list[int]:
    """Seeded lengths, taken from each bucket in turn."""
    generator = torch.Generator().manual_seed(0)
    least = [1, *(bucket + 1 for bucket in buckets)]
    turns = (place % len(buckets) for place in range(count))
    return [int(torch.randint(least[turn], buckets[turn] + 1, (1,), generator=generator)) for turn in turns]


def _text_lengths(source: Source, inputs: Rows) -> list[int]:
    """The lengths of an encoder's calibration texts, from their attention mask."""
    place = next(place for place, port in enumerate(source.inputs) if port.name == "attention_mask")
    return [int(length) for length in inputs[place].sum(1)]


def check_padding(spec: Spec, source: Source, reference: RunBatch, inputs: Rows, outputs: Sequence[Port]) -> None:
    """Raises SourceError if padding changes the answers to most inputs: then no artifact can agree, and compiling one
    may take minutes."""
    few, varies = tuple(value[:TRIED_ROWS] for value in inputs), [port.varies for port in outputs]
    for padded in padded_rows(spec, source, reference, few):
        compared = compare_tensors(*aligned_answers(padded, reference, 1, varies), eager_tolerance(spec))
        if compared.agreement < min(0.5, spec.model.min_agreement):
            raise SourceError(
                f"{spec.file}: `model.source`: the model answers an input differently if it is padded to the length "
                f"of longer ones, allowed: answers that ignore padding",
                hint=_hint_for_padding(spec),
            )


def _hint_for_padding(spec: Spec) -> str:
    if spec.model.encodes:
        return "use a model that ignores the tokens whose `attention_mask` is 0; this one reads them too"
    inputs = spec.model.inputs or {}
    if any(tensor.mask_of for tensor in inputs.values()):
        return "let `forward` ignore what its mask marks as padding, or give the input a fixed `shape`"
    varying = next((name for name, tensor in inputs.items() if tensor.varying), "x")
    return f"give the model a mask of the padding: `mask: {{mask_of: {varying}}}` under `inputs`, or a fixed `shape`"


def aligned_answers(padded: PaddedRows, run: RunBatch, batch: int, varies: Sequence[int | None]) -> tuple[Rows, Rows]:
    """The reference's answers and an artifact's, which runs in batches of one size. Both have the same width, with
    zeros past the end of each row. `varies` has the dimension of each output that follows the input's length."""
    together = run_in_batches(run, padded.rows, batch)
    expected, got = [], []
    for place, (side, value) in enumerate(zip(varies, together, strict=True)):
        value = value.clone()
        reference = torch.zeros_like(value)
        for at, length in enumerate(padded.lengths):
            answer = padded.answers[at][place][0]
            if side is None:
                reference[at] = answer
            else:
                reference[at].narrow(side, 0, length).copy_(answer)
                value[at].narrow(side, length, value.shape[side + 1] - length).zero_()
        expected.append(reference)
        got.append(value)
    return tuple(expected), tuple(got)


def _padded(source: Source, rows: Rows, lengths: list[int]) -> Rows:
    """The rows with padding past the length of each, as a worker pads them."""
    padded = [value.clone() for value in rows]
    ports = dict(zip(request_arguments(source), source.inputs, strict=True))
    for place, dimension in varying_dimensions(source):
        filling = _pad_value(ports[place]) if place in ports else 0
        for at, length in enumerate(lengths):
            row = padded[place][at]
            row.narrow(dimension - 1, length, row.shape[dimension - 1] - length).fill_(filling)
    return tuple(padded)


def _pad_value(port: Port) -> float:
    return port.pad if port.pad is not None else port.min or 0
