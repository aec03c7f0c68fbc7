"""From a measurement and an objective to PASS, FAIL or INVALID. Pure."""

from loadtest.judging.outcome import Latency, Load, Outcome, Run, Subject, latency_of, run_of, together
from loadtest.judging.slo import client_timeout_s, judge, objective_of, samples_needed
from loadtest.judging.trust import BUSY_CPU, SHARE
from loadtest.judging.verdict import Check, Objective, Reason, Status, Verdict, combine

__all__ = [
    "BUSY_CPU",
    "SHARE",
    "Check",
    "Latency",
    "Load",
    "Objective",
    "Outcome",
    "Reason",
    "Run",
    "Status",
    "Subject",
    "Verdict",
    "client_timeout_s",
    "combine",
    "judge",
    "latency_of",
    "objective_of",
    "run_of",
    "samples_needed",
    "together",
]
