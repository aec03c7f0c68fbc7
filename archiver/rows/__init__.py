"""Whether a model answers every row by itself and every time alike; where in the user's code it does not."""

from archiver.rows.check import RowsMixed, check_alike, check_apart

__all__ = ["RowsMixed", "check_alike", "check_apart"]
