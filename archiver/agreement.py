"""Measures how well artifacts agree with the eager fp32 model, and refuses those that do not agree well enough."""

from dataclasses import dataclass
from typing import Literal

import torch

from marina.archiver.calibration import Rows, batches
from marina.archiver.rows import LARGEST_ROUNDING, ROUNDING, RunBatch
from marina.config.errors import AgreementError
from marina.config.record import TOLERANCE, Agreement
from marina.config.spec import Spec

# The perplexity of a packaged language model may be this many times that of the model in fp32.
LARGEST_PERPLEXITY_RATIO = 1.02


@dataclass(frozen=True)
class Similarity:
    """How similar two sets of answers are."""

    agreement: float
    max_abs_difference: float
    cosine: float


def run_in_batches(run: RunBatch, inputs: Rows, batch: int) -> Rows:
    """The outputs for all rows, on the CPU, computed in batches of exactly this size."""
    parts = [[value[:real] for value in run(list(rows))] for rows, real in batches(inputs, batch)]
    return tuple(torch.cat(column).detach().cpu() for column in zip(*parts, strict=True))


def compare_classes(expected: Rows, got: Rows) -> Similarity:
    """Compares answers that are `top_probs` and `top_indices`: rows agree if their first class is the same. Rows with
    an answer for each token count by token; those past the end of a text are zeros in both."""
    is_answer = expected[0].flatten(0, -2)[:, 0] != 0
    expected, got = (tuple(value.flatten(0, -2)[is_answer] for value in answer) for answer in (expected, got))
    same = (expected[1][:, 0] == got[1][:, 0]).double().mean()
    classes = int(max(expected[1].max(), got[1].max())) + 1
    left, right = (_by_class(answer, classes) for answer in (expected, got))
    return Similarity(float(same), float((left - right).abs().max()), _cosine(left, right))


def compare_tensors(expected: Rows, got: Rows, tolerance: float) -> Similarity:
    """Compares answers of any tensors: rows agree if no value is off by more than `tolerance` times the largest of its
    row, and rounding."""
    rows = len(expected[0])
    agree = torch.ones(rows, dtype=torch.bool)
    largest, cosine = 0.0, 1.0
    for left, right in zip(expected, got, strict=True):
        if not left.numel():
            continue
        left, right = left.reshape(rows, -1).double(), right.reshape(rows, -1).double()
        # Equal infinities, with which models mask what cannot be, differ by NaN, and would make any difference small.
        difference = (left - right).abs().masked_fill(left == right, 0).amax(dim=1)
        left, right = (value.nan_to_num(0, 0, 0) for value in (left, right))
        # Not `difference > …` negated, because a NaN must disagree.
        agree &= difference <= tolerance * left.abs().amax(dim=1) + LARGEST_ROUNDING * left.abs().max()
        largest = max(largest, float(difference.max()))
        cosine = min(cosine, _cosine(left, right))
    return Similarity(float(agree.double().mean()), largest, cosine)


def eager_tolerance(spec: Spec) -> float:
    """The tolerance between two runs of the eager network in fp32. GPUs compute convolutions with fewer digits."""
    return ROUNDING if spec.serving.device == "cpu" else TOLERANCE


def worst_agreement(
    measured: list[Similarity],
    *,
    inputs: Literal["calibration", "generated"],
    count: int,
    measure: Literal["top-1", "tolerance"],
) -> Agreement:
    """The agreement to record for several artifacts: the worst value of each figure."""
    return Agreement(
        inputs=inputs,
        count=count,
        measure=measure,
        agreement=min(compared.agreement for compared in measured),
        max_abs_difference=round(max(compared.max_abs_difference for compared in measured), 6),
        cosine=round(min(compared.cosine for compared in measured), 6),
    )


def check_agreement(spec: Spec, agreed: Agreement) -> None:
    """Raises AgreementError if the artifacts do not agree with the eager fp32 model, or if a language model does not
    know its calibration texts."""
    if (agreed.perplexity_ratio or 1.0) > LARGEST_PERPLEXITY_RATIO:
        raise AgreementError(
            f"{spec.file}: `model.precision`: the perplexity of {spec.model.precision} is "
            f"{agreed.perplexity_ratio:.4f} times that of fp32 on {agreed.count} tokens, allowed: "
            f"{LARGEST_PERPLEXITY_RATIO:g}; no MAR was written",
            hint="precision: int8" if spec.model.precision == "int4" else "precision: fp32",
        )
    if agreed.agreement is not None and agreed.agreement < spec.model.min_agreement:
        raise AgreementError(
            f"{spec.file}: `model.min_agreement`: the {spec.model.precision} artifact agrees with eager fp32 on "
            f"{agreed.agreement:.4f} of {agreed.count} {agreed.inputs} inputs ({agreed.measure}), "
            f"allowed: {spec.model.min_agreement:g} or more; no MAR was written",
            hint=_hint(spec),
        )
    _check_perplexity(spec, agreed)


def _hint(spec: Spec) -> str:
    if any(tensor.varying for tensor in (spec.model.inputs or {}).values()) and spec.model.precision == "fp32":
        return "padding may change the answers: give the model a mask, `mask_of` under `inputs`, or a fixed `shape`"
    if spec.model.compile == "eager" and spec.model.precision == "fp32":
        return f"`{spec.model.source}` may return another network each time: seed `random` and `numpy` in it"
    return "use another `precision`, calibrate on more of the real inputs, or lower `min_agreement`"


def _check_perplexity(spec: Spec, agreed: Agreement) -> None:
    """Raises AgreementError if the perplexity of a language model on its calibration texts is too high. Agreement with
    the same model in fp32 cannot show that: a wrong configuration is wrong there too."""
    if spec.model.calibration is None or agreed.perplexity is None or agreed.guessing is None:
        return
    if agreed.perplexity > agreed.guessing:
        raise AgreementError(
            f"{spec.file}: `model.calibration`: its texts have a perplexity of {agreed.perplexity:.4g} for the model "
            f"in fp32, allowed: {agreed.guessing}, the perplexity of guessing; no MAR was written",
            hint="compare `config.json` and `tokenizer.json` with those that the weights were trained with",
        )


def perplexity_warning(spec: Spec, agreed: Agreement) -> str | None:
    """The warning about a language model that predicts plain English no better than chance, if the spec has no texts
    that it should know."""
    if spec.model.calibration is not None or agreed.perplexity is None or agreed.perplexity < (agreed.guessing or 0):
        return None
    return (
        f"the model predicts plain English no better than by guessing (perplexity {agreed.perplexity:.4g} with "
        f"{agreed.guessing} tokens): its configuration or its weights may be wrong"
    )


def _by_class(answer: Rows, classes: int) -> torch.Tensor:
    """The top probabilities at the index of their class, zero elsewhere."""
    probabilities, indices = answer[0].double(), answer[1]
    return torch.zeros(len(indices), classes, dtype=torch.double).scatter(1, indices, probabilities)


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    """The smallest cosine similarity over the rows; two rows of zeros count as equal."""
    both_zero = (left.abs().amax(dim=1) == 0) & (right.abs().amax(dim=1) == 0)
    cosines = torch.nn.functional.cosine_similarity(left, right, dim=1)
    return float(torch.where(both_zero, torch.ones_like(cosines), cosines).min())
