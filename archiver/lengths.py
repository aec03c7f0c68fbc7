"""Inputs with a dimension that varies, where a model is packaged: cut to a length, and compared over all lengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from archiver.agreement import RunBatch
from archiver.inputs import Rows, batches
from archiver.sources import Source
from config.errors import SourceError
from config.record import Port
from config.spec import Spec
from handlers.record import PackedRecord


def sent(source: Source) -> tuple[int, ...]:
    """Which of the model's arguments a request holds: all but the mask."""
    mask = source.lengths.mask if source.lengths else None
    count = len(source.inputs) + (mask is not None)
    return tuple(place for place in range(count) if place != mask)


def varying_dimensions(source: Source) -> list[tuple[int, int]]:
    """Each argument that varies and which of its dimensions does, the batch counted."""
    pairs = zip(sent(source), source.inputs, strict=True)
    dimensions = [(place, port.varies + 1) for place, port in pairs if port.varies is not None]
    if source.lengths is not None and source.lengths.mask is not None:
        dimensions.append((source.lengths.mask, 1))
    return dimensions


def typical_length(source: Source) -> int | None:
    """What a generated sample has: the bucket in the middle."""
    return source.lengths.buckets[(len(source.lengths.buckets) - 1) // 2] if source.lengths else None


def compiled(source: Source) -> tuple[int | None, ...]:
    """The lengths that have an artifact of their own; None is one that has no length, or takes every one."""
    return source.lengths.buckets if source.lengths and not source.lengths.dynamic else (None,)


def of_length(source: Source, rows: Rows, length: int | None) -> Rows:
    """The model's arguments with their dimension that varies cut to a length; None leaves them as they are."""
    if length is None:
        return rows
    cut = list(rows)
    for place, dimension in varying_dimensions(source):
        cut[place] = cut[place].narrow(dimension, 0, length).contiguous()
    return tuple(cut)


def varying_outputs(
    spec: Spec, source: Source, graph: nn.Module, ports: tuple[Port, ...], sample: Rows
) -> tuple[Port, ...]:
    """The outputs with the dimension in which each follows the input's length, found by trying a shorter one."""
    if source.lengths is None:
        return ports
    length, shorter = source.lengths.buckets[-1], max(1, source.lengths.buckets[-1] - 1)
    with torch.no_grad():
        outputs = graph(*of_length(source, sample, shorter))
    following = []
    for port, output in zip(ports, outputs, strict=True):
        sides = list(enumerate(zip(port.shape, output.shape[1:], strict=True)))
        changed = [place for place, (long, short) in sides if long != short]
        if len(changed) > 1 or any(
            (port.shape[place], output.shape[place + 1]) != (length, shorter) for place in changed
        ):
            raise SourceError(
                f"{spec.file}: `model.source`: its output `{port.name}` is {list(port.shape)} for a length of {length} "
                f"and {list(output.shape[1:])} for {shorter}, allowed: a fixed size, or the input's length"
            )
        following.append(port.model_copy(update={"varies": changed[0] if changed else None}))
    return tuple(following)


@dataclass(frozen=True)
class Case:
    """Rows of their own lengths, what they are padded to, and the reference's answers to each alone and unpadded."""

    rows: Rows
    own: list[int]
    alone: list[tuple[torch.Tensor, ...]]


def cases(source: Source, reference: RunBatch, inputs: Rows, *, texts: bool) -> list[Case]:
    """One for each bucket that has rows; calibration texts have lengths of their own, other rows get them here."""
    assert source.lengths is not None
    own = _of_texts(source, inputs) if texts else _drawn(source.lengths.buckets, len(inputs[0]))
    alone = []
    for place, length in enumerate(own):
        row = tuple(value[[place]] for value in inputs)
        alone.append(tuple(answer.cpu() for answer in reference(list(of_length(source, row, length)))))
    by_bucket = []
    for bucket in source.lengths.buckets:
        # A worker runs a short row in a larger bucket too, where that is cheaper than by itself.
        places = [place for place, length in enumerate(own) if length <= bucket]
        if not places:
            continue
        lengths = [own[place] for place in places]
        width = max(lengths) if source.lengths.dynamic else bucket
        rows = of_length(source, tuple(value[places] for value in inputs), width)
        by_bucket.append(Case(_padded(source, rows, lengths), lengths, [alone[place] for place in places]))
    return by_bucket


def _drawn(buckets: tuple[int, ...], count: int) -> list[int]:
    """Lengths of every bucket in turn."""
    generator = torch.Generator().manual_seed(0)
    least = [1, *(bucket + 1 for bucket in buckets)]
    turns = (place % len(buckets) for place in range(count))
    return [int(torch.randint(least[turn], buckets[turn] + 1, (1,), generator=generator)) for turn in turns]


def _of_texts(source: Source, inputs: Rows) -> list[int]:
    """What the mask of an encoder says of its calibration texts."""
    place = next(place for place, port in enumerate(source.inputs) if port.name == "attention_mask")
    return [int(length) for length in inputs[place].sum(1)]


def answers(case: Case, run: RunBatch, batch: int, record: PackedRecord) -> tuple[Rows, Rows]:
    """The reference's answers to the rows of a case and an artifact's, in batches of one size; both as rows of one
    width, zero behind a row's length."""
    parts = []
    for padded, real in batches(case.rows, batch):
        parts.append([value[:real] for value in run(list(padded))])
    together = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
    return _lined_up(record, case.alone, together, case.own)


def _padded(source: Source, rows: Rows, own: list[int]) -> Rows:
    """Rows with what lies behind the length of each made padding, as a worker does."""
    padded = [value.clone() for value in rows]
    ports = dict(zip(sent(source), source.inputs, strict=True))
    for place, dimension in varying_dimensions(source):
        value = _behind(ports[place]) if place in ports else 0
        for at, length in enumerate(own):
            row = padded[place][at]
            row.narrow(dimension - 1, length, row.shape[dimension - 1] - length).fill_(value)
    return tuple(padded)


def _behind(port: Port) -> float:
    """What stands behind a request's length."""
    return port.pad if port.pad is not None else port.min or 0


def _lined_up(
    record: PackedRecord, alone: list[tuple[torch.Tensor, ...]], together: list[torch.Tensor], own: list[int]
) -> tuple[Rows, Rows]:
    expected, got = [], []
    for place, (spec, value) in enumerate(zip(record.outputs, together, strict=True)):
        value = value.clone()
        wanted = torch.zeros_like(value)
        for at, length in enumerate(own):
            answer = alone[at][place][0]
            if spec.varies is None:
                wanted[at] = answer
            else:
                wanted[at].narrow(spec.varies, 0, length).copy_(answer)
                value[at].narrow(spec.varies, length, value.shape[spec.varies + 1] - length).zero_()
        expected.append(wanted)
        got.append(value)
    return tuple(expected), tuple(got)
