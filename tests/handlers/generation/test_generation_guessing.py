"""Guesses of the next tokens: from repetitions in the text, and only if they make answers faster."""

import random

import pytest

from marina.handlers.generation.engines.guessing import Guesser, choose_guess_count


def read(tokens: list[int]) -> Guesser:
    """Reads the tokens one by one, as an engine does."""
    guesser = Guesser()
    for end in range(1, len(tokens) + 1):
        guesser.read(tokens[:end])
    return guesser


def test_what_followed_the_same_tokens_before_is_the_guess() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    assert read(text).guess(text, 3) == [4, 5, 6]


def test_a_repeated_phrase_is_guessed_over_and_over() -> None:
    text = [7, 8, 9] * 3
    assert read(text).guess(text, 7) == [7, 8, 9, 7, 8, 9, 7]


def test_a_text_without_repetition_gives_no_guess() -> None:
    text = [1, 2, 3, 4]
    assert read(text).guess(text, 3) == []


def test_guesses_are_judged_even_if_they_were_not_computed() -> None:
    assert read([7, 8, 9] * 20).right > 0.95
    dice = random.Random(1)
    assert read([dice.randrange(3) for _ in range(300)]).right < 0.7
    # When guesses stop being right, that shows soon.
    assert read([7, 8, 9] * 20 + [7, 8, 1] + [7, 8, 2, 8, 9, 3, 8, 1, 7]).right < 0.95


def test_a_text_read_in_pieces_gives_the_same_guesses() -> None:
    text = [random.Random(2).randrange(4) for _ in range(50)]
    whole = Guesser()
    whole.read(text)
    assert (whole.right, whole.guess(text, 4)) == (read(text).right, read(text).guess(text, 4))


@pytest.mark.parametrize(
    ("right", "row_cost", "rows", "expected"),
    [
        pytest.param(0.0, 0.1, 1, 0, id="nothing is right"),
        pytest.param(0.3, 0.3, 1, 0, id="too little is right for what a row costs"),
        pytest.param(1.0, 0.1, 1, 11, id="all is right"),
        pytest.param(0.99, 1.0, 1, 0, id="a row costs as much as a step"),
        pytest.param(0.8, 0.15, 32, 0, id="among many a row costs as much as it gives"),
    ],
)
def test_guesses_are_computed_only_if_they_make_answers_faster(
    right: float, row_cost: float, rows: int, expected: int
) -> None:
    assert choose_guess_count(right, limit=11, row_cost=row_cost, rows=rows) == expected


def test_more_guesses_are_computed_if_more_are_right_and_rows_cost_less() -> None:
    counts = [choose_guess_count(right, limit=11, row_cost=0.1, rows=1) for right in (0.3, 0.5, 0.7, 0.9)]
    assert counts == sorted(counts)
    assert (
        choose_guess_count(0.7, limit=11, row_cost=0.05, rows=1)
        > choose_guess_count(0.7, limit=11, row_cost=0.2, rows=1)
        > 0
    )
