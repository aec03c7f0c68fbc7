"""What a short run already says of a rate: a clear one needs no thousand answers. Pure.

For a search only, where a wrong answer costs a detour. A verdict needs the answers that a p99 needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.judging.certainty import LatenciesOf, latency_interval, samples_needed, tail_interval
from loadtest.judging.pooling import pool
from loadtest.judging.stream_checks import judged_tails
from loadtest.judging.verdict import TOO_FEW, Objective, Status, Verdict
from loadtest.measuring import Measurement

# As of a p99 that is judged: the tail of a queue falls at least exponentially.
_NONE_OVER = 0.5
# Of so few, 5 % are a handful.
_FEWEST = 100


def decided_early(verdict: Verdict, runs: Sequence[Measurement], objective: Objective) -> Status | None:
    """PASS or FAIL where that is clear, though the answers of what was judged are too few for a p99; else None."""
    if verdict.status == "FAIL":
        return "FAIL"
    if verdict.reasons or TOO_FEW not in {reason.id for reason in verdict.every_reason()}:
        return None
    together = pool(runs)
    if together.response.count < _FEWEST or not together.slices:
        return None
    statuses = [_status(together, tail.limit, tail.of) for tail in judged_tails(objective)]
    if set(statuses) == {"PASS"}:
        spoilt = [check for check in verdict.checks if check.objective == "errors" and check.measured]
        spoilt += [check for check in verdict.checks if check.objective == "goodput" and check.status != "PASS"]
        return None if spoilt else "PASS"
    whole, *pieces = statuses
    return "FAIL" if "FAIL" in pieces or (whole == "FAIL" and _slow_also_when_sent(together, objective)) else None


def _status(run: Measurement, limit_ms: float, of: LatenciesOf) -> Status:
    whole = of(run)
    status = tail_interval(whole, [of(piece) for piece in run.slices], limit_ms).status
    few = whole.count < samples_needed() and whole.max_ms > _NONE_OVER * limit_ms
    return "INVALID" if few and status == "PASS" else status


def _slow_also_when_sent(run: Measurement, objective: Objective) -> bool:
    """Not only because the generator sent some late."""
    return latency_interval(run.model_copy(update={"response": run.service}), objective.p99_ms).status != "PASS"
