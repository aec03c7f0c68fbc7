import pytest

from marina.server.watching.probe import is_steady


@pytest.mark.parametrize(
    ("milliseconds", "steady"),
    [
        pytest.param([], False, id="nothing seen"),
        pytest.param([60, 60, 60, 60], False, id="nothing to compare with"),
        pytest.param([60, 30, 30, 30, 30], False, id="the first was slow"),
        pytest.param([60, 30, 30, 30, 30, 30], True, id="as fast as before"),
        pytest.param([60, 30, 30, 30, 30, 25], False, id="the last is faster"),
        pytest.param([60, 30, 90, 31, 70, 29], True, id="one of the last is as fast, a little faster is noise"),
        pytest.param([60, 30, 90, 90, 90, 90], True, id="slower is not faster"),
    ],
)
def test_warming_ends_when_the_last_four_are_not_faster(milliseconds: list[float], steady: bool) -> None:
    assert is_steady(milliseconds) is steady
