"""Formats numbers for people."""

from __future__ import annotations


def figure(value: float) -> str:
    """`0.4132`, `412.3`, `1,712`: four significant figures or a whole number, never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """`0.1 %`, with three significant figures, so that small rates can be told apart."""
    return f"{100 * share:.3g} %"
