"""`marina compare`: measures two servers in turns, and judges by the ratios of their figures whether the new one is
worse."""

from marina.loadtest.comparing.answer_comparison import inputs_of
from marina.loadtest.comparing.compare import CompareOptions, compare, comparison_text
from marina.loadtest.comparing.comparison import Comparison
from marina.loadtest.comparing.report import comparison_markdown

__all__ = ["CompareOptions", "Comparison", "compare", "comparison_markdown", "comparison_text", "inputs_of"]
