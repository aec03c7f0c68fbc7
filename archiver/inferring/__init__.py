"""What a model takes, found by reading its `forward`, following trial inputs to its layers, and trying shapes."""

from archiver.inferring.arguments import Given, parse_given
from archiver.inferring.found import Found, Input
from archiver.inferring.program import inputs_of_program
from archiver.inferring.search import find_inputs

__all__ = ["Found", "Given", "Input", "find_inputs", "inputs_of_program", "parse_given"]
