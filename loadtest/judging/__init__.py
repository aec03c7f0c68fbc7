"""Turns a measurement and an objective into PASS, FAIL or INVALID. No I/O."""

from loadtest.judging.certainty import (
    P99_SHARE,
    SPARE_SAMPLES,
    arrivals_needed,
    failed_clumps,
    missed_clumps,
    samples_needed,
    slow_clumps,
    with_status,
)
from loadtest.judging.cost import Costs, costs_of, costs_text, with_costs
from loadtest.judging.early import decided_early
from loadtest.judging.interval import CONFIDENCE, Counts, difference_interval
from loadtest.judging.outcome import (
    LatencySummary,
    LoadedServer,
    LoadRecord,
    LoadTestOutcome,
    RampResult,
    RunRecord,
    StreamFigures,
    latency_summary,
    run_record,
    stream_figures,
)
from loadtest.judging.pooling import pool
from loadtest.judging.ramp import MOST_STEPS, STEP_REQUESTS, judge_ramp, ramp_result, ramp_text
from loadtest.judging.slo import HELD_SHARE, best_guess, client_timeout_s, judge, objective_of
from loadtest.judging.soak import GROWTH_ALLOWED, judge_soak, judged_from_s
from loadtest.judging.stream_checks import judged_tails
from loadtest.judging.trust import BUSY_CPU, GENERATOR_REASONS, distrust_reasons
from loadtest.judging.verdict import (
    EXIT_CODES,
    TOO_FEW,
    UNDECIDED,
    Check,
    Objective,
    Reason,
    Verdict,
    VerdictStatus,
    interval_text,
    is_undecided,
    worst_status,
)

__all__ = [
    "BUSY_CPU",
    "CONFIDENCE",
    "EXIT_CODES",
    "GENERATOR_REASONS",
    "GROWTH_ALLOWED",
    "HELD_SHARE",
    "MOST_STEPS",
    "P99_SHARE",
    "SPARE_SAMPLES",
    "STEP_REQUESTS",
    "TOO_FEW",
    "UNDECIDED",
    "Check",
    "Costs",
    "Counts",
    "LatencySummary",
    "LoadRecord",
    "LoadTestOutcome",
    "LoadedServer",
    "Objective",
    "RampResult",
    "Reason",
    "RunRecord",
    "StreamFigures",
    "Verdict",
    "VerdictStatus",
    "arrivals_needed",
    "best_guess",
    "client_timeout_s",
    "costs_of",
    "costs_text",
    "decided_early",
    "difference_interval",
    "distrust_reasons",
    "failed_clumps",
    "interval_text",
    "is_undecided",
    "judge",
    "judge_ramp",
    "judge_soak",
    "judged_from_s",
    "judged_tails",
    "latency_summary",
    "missed_clumps",
    "objective_of",
    "pool",
    "ramp_result",
    "ramp_text",
    "run_record",
    "samples_needed",
    "slow_clumps",
    "stream_figures",
    "with_costs",
    "with_status",
    "worst_status",
]
