import pytest

from marina.config.pages import milliseconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9996, "1 ms"), (999.4, "999 ms"), (999.6, "1 s"), (999_400, "999 s"), (1_234_500, "1,234 s")],
)
def test_a_time_is_written_without_an_exponent(value: float, text: str) -> None:
    assert milliseconds(value) == text
