"""Turns a measurement and an objective into PASS, FAIL or INVALID. No I/O."""

from marina.loadtest.judging.certainty import (
    P99_SHARE,
    SPARE_SAMPLES,
    arrivals_needed,
    failed_clumps,
    judged_tails,
    missed_clumps,
    samples_needed,
    slow_clumps,
    with_status,
)
from marina.loadtest.judging.cost import costs_of, costs_text, with_costs
from marina.loadtest.judging.early import decided_early
from marina.loadtest.judging.interval import (
    CONFIDENCE,
    Counts,
    arrivals_to_decide,
    circular_sums,
    correlation_time,
    difference_interval,
)
from marina.loadtest.judging.record import (
    LoadRecord,
    LoadTestOutcome,
    RunRecord,
    StreamFigures,
    latency_summary,
    run_record,
    stream_figures,
)
from marina.loadtest.judging.slo import HELD_SHARE, best_guess, client_timeout_s, judge, objective_of
from marina.loadtest.judging.soak import GROWTH_ALLOWED, growth, judge_soak, judged_from_s
from marina.loadtest.judging.trust import BUSY_CPU, GENERATOR_REASONS, busy_machine_reasons, distrust_reasons
from marina.loadtest.judging.verdict import TOO_FEW, UNDECIDED, interval_text, is_undecided, worst_status

__all__ = [
    "BUSY_CPU",
    "CONFIDENCE",
    "GENERATOR_REASONS",
    "GROWTH_ALLOWED",
    "HELD_SHARE",
    "P99_SHARE",
    "SPARE_SAMPLES",
    "TOO_FEW",
    "UNDECIDED",
    "Counts",
    "LoadRecord",
    "LoadTestOutcome",
    "RunRecord",
    "StreamFigures",
    "arrivals_needed",
    "arrivals_to_decide",
    "best_guess",
    "busy_machine_reasons",
    "circular_sums",
    "client_timeout_s",
    "correlation_time",
    "costs_of",
    "costs_text",
    "decided_early",
    "difference_interval",
    "distrust_reasons",
    "failed_clumps",
    "growth",
    "interval_text",
    "is_undecided",
    "judge",
    "judge_soak",
    "judged_from_s",
    "judged_tails",
    "latency_summary",
    "missed_clumps",
    "objective_of",
    "run_record",
    "samples_needed",
    "slow_clumps",
    "stream_figures",
    "with_costs",
    "with_status",
    "worst_status",
]
