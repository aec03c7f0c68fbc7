"""What a model takes, found by reading its `forward`, following trial inputs to its layers, and trying shapes."""

from archiver.inferring.arguments import GivenInput, parse_input_option
from archiver.inferring.exported_program import find_program_inputs
from archiver.inferring.inferred import InferredInputs, Input
from archiver.inferring.search import find_inputs

__all__ = ["GivenInput", "InferredInputs", "Input", "find_inputs", "find_program_inputs", "parse_input_option"]
