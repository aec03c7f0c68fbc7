"""The steps of a sequence may lie along either dimension, and need no dimension for a single number."""

from typing import Any

import pytest
from networks import Net
from torch import nn

from marina.archiver.inferring import find_inputs

LAST = "`x`: 128 is a guess, the model takes longer ones as well"


def convolves(self: Any, x: Any) -> Any:
    return self.c(x.transpose(1, 2)).mean(2)


def recurs(self: Any, x: Any) -> Any:
    return self.r(x.transpose(1, 2))[0][:, -1]


STEPS: list[Any] = [
    pytest.param(Net(convolves, c=nn.Conv1d(7, 4, 3, padding=1)), [128, 7], id="steps first"),
    pytest.param(Net(recurs, r=nn.GRU(5, 4, batch_first=True)), [5, 128], id="steps last"),
    pytest.param(
        Net(lambda self, x: self.r(x[..., None])[0][:, -1], r=nn.GRU(1, 4, batch_first=True)),
        [128],
        id="single numbers",
    ),
]


@pytest.mark.parametrize(("network", "shape"), STEPS)
def test_steps_along_either_dimension_are_found_and_their_number_is_a_guess(
    network: nn.Module, shape: list[int]
) -> None:
    inferred = find_inputs(network, [])
    assert inferred.inputs["x"].field() == {"shape": shape, "dtype": "float32"}
    assert inferred.notes[-1] == LAST


def test_as_many_steps_as_numbers_in_each_are_tried_last() -> None:
    inferred = find_inputs(Net(convolves, c=nn.Conv1d(128, 4, 3, padding=1)), [])
    assert inferred.inputs["x"].shape == (64, 128)


@pytest.mark.slow
def test_the_only_size_that_a_configuration_allows_is_found() -> None:
    import transformers

    small = {"d_model": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    series = transformers.PatchTSTConfig(
        context_length=32, num_input_channels=3, patch_length=8, patch_stride=8, **small
    )
    assert find_inputs(transformers.PatchTSTForPrediction(series), []).inputs["past_values"].shape == (32, 3)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "pad_token_id": 0}
    sounds = transformers.WhisperConfig(d_model=12, num_mel_bins=20, max_source_positions=50, vocab_size=9, **layers)
    encoder = transformers.WhisperModel(sounds).encoder
    assert find_inputs(encoder, []).inputs["input_features"].shape == (20, 100)
    frames = transformers.ASTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, max_length=64, num_mel_bins=32
    )
    assert find_inputs(transformers.ASTForAudioClassification(frames), []).inputs["input_values"].shape == (64, 32)


def test_as_many_steps_as_rows_are_not_taken_for_rows() -> None:
    # Of 128 numbers the convolution makes two steps, and the state that it returns allows only one row.
    layers = {"c": nn.Conv1d(1, 4, 64, stride=64), "r": nn.GRU(4, 4)}
    inferred = find_inputs(Net(lambda self, x: self.r(self.c(x).permute(2, 0, 1))[1], **layers), [])
    assert inferred.only_batch == 1
    assert "so `batch_sizes` is [1]: an output is (1, 5, 4) for 5 rows" in inferred.notes[0]
