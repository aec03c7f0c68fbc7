"""Checks that a model answers every row independently of the others and the same every time, and finds the line of the
user's code where it does not."""

from marina.archiver.rows.checks import (
    LARGEST_ROUNDING,
    ROUNDING,
    TRIED_ROWS,
    RowsMixed,
    check_repeatable,
    check_rows_apart,
    close,
    eager_runner,
)
from marina.archiver.rows.culprits import RunBatch

__all__ = [
    "LARGEST_ROUNDING",
    "ROUNDING",
    "TRIED_ROWS",
    "RowsMixed",
    "RunBatch",
    "check_repeatable",
    "check_rows_apart",
    "close",
    "eager_runner",
]
