"""The choice of a token by the scores of all tokens."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.engines.sampling import Sampler

SCORES = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def chances(
    scores: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """As `transformers` computes them."""
    steps: list[Any] = [TemperatureLogitsWarper(temperature)]
    steps += [TopKLogitsWarper(top_k)] if top_k else []
    steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    steps += [MinPLogitsWarper(min_p)] if min_p else []
    kept = LogitsProcessorList(steps)(torch.zeros(1, 1, dtype=torch.long), torch.tensor(scores)[None])
    return torch.softmax(kept[0].double(), 0).numpy()


def varied(tokens: int, spread: float) -> np.ndarray:
    return (np.random.default_rng(4).normal(size=tokens) * spread).astype(np.float32)


SETTINGS: dict[str, dict[str, Any]] = {
    "openai's defaults": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 7},
    "most of them": {"top_p": 0.94},
    "few of them": {"top_p": 0.2},
    "none far below the likeliest": {"min_p": 0.3, "temperature": 1.5},
    "all together": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}
DISTRIBUTIONS = {
    "flat": varied(600, 0.5),
    "peaked": varied(1100, 4.0),
    "two of the same": np.array([2.0, 1.0, 1.0, 0.5, -np.inf, -3.0], np.float32),
}


@pytest.mark.parametrize("scores", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_tokens_are_drawn_as_by_the_processors_of_transformers(setting: dict[str, Any], scores: np.ndarray) -> None:
    expected, draws = chances(scores, **setting), 1500
    sampler = Sampler(Sampling(seed=1, **setting))
    drawn = np.bincount([sampler.choose(scores)[0] for _ in range(draws)], minlength=len(scores))
    assert drawn[expected == 0].sum() == 0
    # Tokens that are too rare for the test are taken together.
    is_rare = expected * draws < 5
    counts = [*drawn[~is_rare], drawn[is_rare].sum()]
    wanted = [*expected[~is_rare] * draws, expected[is_rare].sum() * draws]
    if wanted[-1] < 5:
        counts, wanted = [*counts[:-2], sum(counts[-2:])], [*wanted[:-2], sum(wanted[-2:])]
    if len(counts) > 1:
        assert chisquare(counts, wanted).pvalue > 1e-4


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.7, 0.97])
def test_top_p_takes_every_token_that_transformers_takes_and_no_other(top_p: float) -> None:
    scores = varied(12, 1.0)
    sampler = Sampler(Sampling(seed=2, top_p=top_p))
    taken = {sampler.choose(scores)[0] for _ in range(2000)}
    assert taken == set(np.flatnonzero(chances(scores, top_p=max(top_p, 1e-9))))


def test_of_equal_tokens_top_p_takes_as_many_as_it_needs() -> None:
    sampler = Sampler(Sampling(seed=2, top_p=0.61))
    assert {sampler.choose(np.zeros(10, np.float32))[0] for _ in range(500)} == {0, 1, 2, 3, 4, 5, 6}


def test_temperature_0_takes_the_likeliest_and_computes_no_more_than_is_asked_for() -> None:
    token, logprob, likeliest = Sampler(Sampling(temperature=0, logprobs=2)).choose(SCORES)
    assert (token, [at for at, _ in likeliest]) == (0, [0, 1])
    assert [logprob, likeliest[1][1]] == pytest.approx(np.log([0.5, 0.3]), abs=1e-5)
    token, logprob, likeliest = Sampler(Sampling(temperature=0)).choose(SCORES)
    assert (token, np.isnan(logprob), likeliest) == (0, True, ())


@pytest.mark.parametrize("setting", [{"temperature": 0}, {"top_k": 2}, {"top_k": 50, "top_p": 0.5}])
def test_logprobs_are_of_all_tokens_whatever_is_excluded(setting: dict[str, Any]) -> None:
    scores = varied(300, 2.0)
    expected = torch.log_softmax(torch.tensor(scores), 0)
    token, logprob, likeliest = Sampler(Sampling(seed=1, logprobs=5, **setting)).choose(scores)
    assert logprob == pytest.approx(float(expected[token]), abs=1e-4)
    best = expected.topk(5)
    assert [at for at, _ in likeliest] == best.indices.tolist()
    assert [value for _, value in likeliest] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1e-320, 1e-9])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_temperature_next_to_0_takes_the_likeliest(temperature: float, top_p: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature, seed=-1, top_p=top_p))
    assert {sampler.choose(np.array([0.0, 3.0, 2.0], dtype=np.float32))[0] for _ in range(20)} == {1}


def test_a_seed_repeats_the_answer() -> None:
    def answer(seed: int) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.choose(SCORES)[0] for _ in range(50)]

    assert answer(3) == answer(3) != answer(4)


def test_no_setting_takes_much_longer_than_all_log_probabilities() -> None:
    scores = varied(152_000, 1.0)

    def best(act: Any) -> float:
        return min(-(time.process_time() - (act(), time.process_time())[1]) for _ in range(15))

    def full() -> None:
        shifted = scores - scores.max()
        assert np.argmax(scores - np.log(np.exp(shifted).sum())) >= 0

    # What greedy took, with room for a noisy machine: a sort takes ten times as long.
    limit = 5 * best(full)
    for setting in SETTINGS.values():
        sampler = Sampler(Sampling(seed=1, **setting))
        assert best(lambda sampler=sampler: sampler.choose(scores)) < limit, setting


def test_penalties_and_biases_change_the_scores_of_their_tokens() -> None:
    scores = np.array([3.0, 2.0, 1.0, -1.0, 0.5], np.float32)

    def written(count: int = 4, prompt: tuple[int, ...] = (), **settings: Any) -> list[int]:
        sampler = Sampler(Sampling(temperature=0, **settings), prompt)
        return [sampler.choose(scores)[0] for _ in range(count)]

    assert written() == [0, 0, 0, 0]
    assert written(presence=1.5) == [0, 1, 0, 0]
    assert written(frequency=0.75) == [0, 0, 1, 0]
    assert written(bias=((3, 10.0), (0, -5.0))) == [3, 3, 3, 3]
    assert written(repetition=4.0, prompt=(0,)) == [1, 2, 0, 0]
    assert written(min_tokens=2, ends=(0,)) == [1, 1, 0, 0]
    # What was excluded counts in log-probabilities all the same.
    sampler = Sampler(Sampling(temperature=0, bias=((0, -100.0),), logprobs=1))
    assert sampler.choose(scores)[2][0][0] == 0


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_a_repetition_is_penalised_as_by_transformers(penalty: float) -> None:
    scores, seen = varied(50, 2.0), [3, 7, 7, 20]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), torch.tensor(scores)[None])[0]
    changed = Sampler(Sampling(repetition=penalty), seen)._changed(scores)
    assert np.allclose(changed, expected.numpy())
