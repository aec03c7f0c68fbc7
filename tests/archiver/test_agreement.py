from typing import Any

import pytest
import torch
from specs import make_spec

from marina.archiver.agreement import (
    Similarity,
    check_agreement,
    compare_classes,
    compare_tensors,
    run_in_batches,
    worst_agreement,
)
from marina.archiver.calibration import batches
from marina.config.errors import AgreementError
from marina.config.record import Agreement

PROBABILITIES = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3]])
CLASSES = torch.tensor([[3, 1], [2, 0], [1, 4], [0, 2]])


def test_equal_answers_agree_fully() -> None:
    compared = compare_classes((PROBABILITIES, CLASSES), (PROBABILITIES, CLASSES))
    assert (compared.agreement, compared.max_abs_difference) == (1, 0)
    assert compared.cosine == pytest.approx(1)


def test_only_the_first_class_decides_agreement() -> None:
    swapped = CLASSES.clone()
    swapped[0] = CLASSES[0].flip(0)
    second = CLASSES.clone()
    second[0, 1] = 4
    assert compare_classes((PROBABILITIES, CLASSES), (PROBABILITIES, swapped)).agreement == 0.75
    assert compare_classes((PROBABILITIES, CLASSES), (PROBABILITIES, second)).agreement == 1


def test_probabilities_are_compared_by_class_not_by_position() -> None:
    swapped = (PROBABILITIES, CLASSES.flip(1))
    assert compare_classes((PROBABILITIES, CLASSES), swapped).max_abs_difference == pytest.approx(0.8)


def test_a_tensor_row_agrees_within_a_fraction_of_its_largest_value() -> None:
    expected = torch.tensor([[100.0, 1.0], [1.0, 1.0]])
    off_by_four = expected + torch.tensor([[0.0, 4.0], [0.0, 4.0]])
    assert compare_tensors((expected,), (off_by_four,), 0.05).agreement == 0.5


def test_equal_infinities_agree_and_do_not_widen_the_tolerance() -> None:
    masked = torch.tensor([[float("-inf"), 1.0], [float("-inf"), 1.0]])
    assert compare_tensors((masked,), (masked.clone(),), 0.05) == Similarity(1.0, 0.0, 1.0)
    other = torch.tensor([[float("-inf"), 2.0], [3.0, 1.0]])
    assert compare_tensors((masked,), (other,), 0.05).agreement == 0


def test_an_output_without_elements_agrees() -> None:
    assert compare_tensors((torch.ones(2, 0),), (torch.ones(2, 0),), 0.05).agreement == 1


def test_nan_never_agrees() -> None:
    expected = torch.ones(2, 3)
    got = expected.clone()
    got[1, 2] = float("nan")
    assert compare_tensors((expected,), (got,), 0.5).agreement == 0.5


def test_the_worst_output_of_several_decides() -> None:
    good, bad = torch.ones(2, 3), torch.full((2, 3), 2.0)
    compared = compare_tensors((good, good), (good, bad), 0.1)
    assert (compared.agreement, compared.max_abs_difference) == (0, 1)


def test_rows_of_zeros_are_equal() -> None:
    assert compare_tensors((torch.zeros(2, 3),), (torch.zeros(2, 3),), 0.1).cosine == 1


def test_the_record_keeps_the_worst_artifact() -> None:
    same = compare_tensors((torch.ones(1, 2),), (torch.ones(1, 2),), 0.1)
    other = compare_tensors((torch.ones(1, 2),), (torch.zeros(1, 2),), 0.1)
    agreed = worst_agreement([same, other], inputs="generated", count=1, measure="tolerance")
    assert (agreed.agreement, agreed.max_abs_difference, agreed.cosine) == (0, 1, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
def test_every_row_is_answered_once_at_any_batch_size(size: int) -> None:
    rows = torch.arange(7.0).reshape(7, 1)
    assert all(len(cut[0]) == size for cut, _ in batches((rows,), size))
    assert torch.equal(run_in_batches(lambda inputs: (inputs[0] * 2,), (rows,), size)[0], rows * 2)


def test_answers_that_are_parameters_need_no_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(1, 2))
    (answers,) = run_in_batches(lambda _: (weight,), (torch.ones(3, 2),), 1)
    assert (answers.requires_grad, answers.tolist()) == (False, [[1, 1]] * 3)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"model.inputs": {"x": {"shape": [{"max": 8}]}}}, "padding may change the answers: give the model a mask"),
        ({"model.compile": "eager"}, "`./model.py:build` may return another network each time: seed `random` and"),
    ],
)
def test_a_model_in_fp32_that_disagrees_is_told_why(changes: dict[str, Any], hint: str) -> None:
    tensors = {"model.handler": "tensor", "model.inputs": {"x": {"shape": [8]}}}
    spec = make_spec({"model.source": "./model.py:build"} | tensors | changes)
    agreed = Agreement(
        inputs="generated", count=64, measure="tolerance", agreement=0.8, max_abs_difference=1.0, cosine=0.9
    )
    with pytest.raises(AgreementError, match=r"agrees with eager fp32 on 0\.8000 of 64 generated inputs") as raised:
        check_agreement(spec, agreed)
    assert str(raised.value.hint).startswith(hint)
