"""Finds the inputs that a model takes: reads its `forward`, tracks trial inputs to its layers, and tries shapes."""

from marina.archiver.inferring.arguments import parse_input_option
from marina.archiver.inferring.exported_program import find_program_inputs
from marina.archiver.inferring.picked_rows import PickedRows, RowLimits, find_picked_rows
from marina.archiver.inferring.search import find_inputs
from marina.archiver.inferring.trial import MOST_TRIED, largest_working, output_names, try_inputs

__all__ = [
    "MOST_TRIED",
    "PickedRows",
    "RowLimits",
    "find_inputs",
    "find_picked_rows",
    "find_program_inputs",
    "largest_working",
    "output_names",
    "parse_input_option",
    "try_inputs",
]
