"""`marina compare`: measures two servers in turns, and judges by the ratios of their figures whether the new one is
worse."""

from loadtest.comparing.baseline import compare_with_baseline
from loadtest.comparing.compare import CompareOptions, compare, comparison_text
from loadtest.comparing.comparison import Comparison, Round, Turn
from loadtest.comparing.judgement import Judgement, judge_rounds
from loadtest.comparing.ratios import Ratio, ratio
from loadtest.comparing.rounds import first_side, look_schedule, look_share

__all__ = [
    "CompareOptions",
    "Comparison",
    "Judgement",
    "Ratio",
    "Round",
    "Turn",
    "compare",
    "compare_with_baseline",
    "comparison_text",
    "first_side",
    "judge_rounds",
    "look_schedule",
    "look_share",
    "ratio",
]
