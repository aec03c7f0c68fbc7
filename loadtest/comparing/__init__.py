"""Whether one server is worse than another: both measured in turns, round after round, and judged by the interval of
each ratio; and `compare`, the verb."""

from loadtest.comparing.baseline import compare_with_baseline
from loadtest.comparing.compare import Pairing, compare, comparison_text
from loadtest.comparing.comparison import Comparison, Round, Turn, turn_of
from loadtest.comparing.judgement import Said, judge_rounds
from loadtest.comparing.ratios import Ratio, ratio
from loadtest.comparing.rounds import first_of, look_share, looks_of

__all__ = [
    "Comparison",
    "Pairing",
    "Ratio",
    "Round",
    "Said",
    "Turn",
    "compare",
    "compare_with_baseline",
    "comparison_text",
    "first_of",
    "judge_rounds",
    "look_share",
    "looks_of",
    "ratio",
    "turn_of",
]
