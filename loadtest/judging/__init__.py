"""From a measurement and an objective to PASS, FAIL or INVALID. Pure."""

from loadtest.judging.certainty import (
    SHARE,
    arrivals_needed,
    failed_clumps,
    missed_clumps,
    samples_needed,
    slow_clumps,
)
from loadtest.judging.climb import MOST_STEPS, STEP_REQUESTS, climb_of, climb_text, judge_climb
from loadtest.judging.cost import Costs, costs_of, costs_text, with_costs
from loadtest.judging.early import decided_early
from loadtest.judging.outcome import Climb, Latency, Load, Outcome, Pieces, Run, Subject, latency_of, pieces_of, run_of
from loadtest.judging.pooling import pool
from loadtest.judging.slo import HELD_SHARE, client_timeout_s, judge, objective_of, on_balance
from loadtest.judging.soak import GROWTH_ALLOWED, judge_soak, judged_from_s
from loadtest.judging.streams import judged_tails
from loadtest.judging.trust import BUSY_CPU, GENERATOR_REASONS, against_run
from loadtest.judging.verdict import (
    EXIT_CODES,
    TOO_FEW,
    UNDECIDED,
    Check,
    Objective,
    Reason,
    Status,
    Verdict,
    goes_on,
    interval_text,
    value_text,
    worst,
)

__all__ = [
    "BUSY_CPU",
    "EXIT_CODES",
    "GENERATOR_REASONS",
    "GROWTH_ALLOWED",
    "HELD_SHARE",
    "MOST_STEPS",
    "SHARE",
    "STEP_REQUESTS",
    "TOO_FEW",
    "UNDECIDED",
    "Check",
    "Climb",
    "Costs",
    "Latency",
    "Load",
    "Objective",
    "Outcome",
    "Pieces",
    "Reason",
    "Run",
    "Status",
    "Subject",
    "Verdict",
    "against_run",
    "arrivals_needed",
    "client_timeout_s",
    "climb_of",
    "climb_text",
    "costs_of",
    "costs_text",
    "decided_early",
    "failed_clumps",
    "goes_on",
    "interval_text",
    "judge",
    "judge_climb",
    "judge_soak",
    "judged_from_s",
    "judged_tails",
    "latency_of",
    "missed_clumps",
    "objective_of",
    "on_balance",
    "pieces_of",
    "pool",
    "run_of",
    "samples_needed",
    "slow_clumps",
    "value_text",
    "with_costs",
    "worst",
]
