"""What benches print of two that were measured in turns."""

import pytest
from specs import ROOT


def test_a_bench_says_between_which_values_a_ratio_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    from board import against, ratio_text

    old = [10.0, 20.0, 10.0, 20.0, 10.0]
    assert ratio_text(against(old, [11.0, 24.0, 12.0, 22.0, 11.0])) == "1.15 (1.10 to 1.20)"
    assert ratio_text(against(old[:3], [11.0, 24.0, 12.0])) == "1.17 (too few rounds for an interval)"
    assert ratio_text(against(old[:1], [12.5])) == "1.25 (too few rounds for an interval)"
