"""An early decision about a rate: if the answer is clear, it does not take a thousand requests. No I/O.

Only a search uses this, since there a wrong answer only costs a detour. A verdict needs as many answers as a p99 needs.
"""

from collections.abc import Sequence

from marina.config.measured import Objective, Verdict, VerdictStatus
from marina.loadtest.judging.certainty import NONE_OVER_SHARE, LatenciesOf, judged_tails, samples_needed, tail_interval
from marina.loadtest.judging.verdict import TOO_FEW
from marina.loadtest.measuring import Measurement, pool

# Of a hundred answers, 5 % are only a handful.
_FEWEST = 100


def decided_early(verdict: Verdict, runs: Sequence[Measurement], objective: Objective) -> VerdictStatus | None:
    """PASS or FAIL if that is already clear, although there are too few answers for a p99; otherwise None."""
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
    # If the p99 is not too high from the real send on, too, late sends alone may explain it.
    when_sent = tail_interval(together.service, [piece.response for piece in together.slices], objective.p99_ms).status
    return "FAIL" if "FAIL" in pieces or (whole == "FAIL" and when_sent != "PASS") else None


def _status(run: Measurement, limit_ms: float, of: LatenciesOf) -> VerdictStatus:
    whole = of(run)
    status = tail_interval(whole, [of(piece) for piece in run.slices], limit_ms).status
    few = whole.count < samples_needed() and whole.max_ms > NONE_OVER_SHARE * limit_ms
    return "INVALID" if few and status == "PASS" else status
