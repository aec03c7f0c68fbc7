"""What requests cost: a pod is paid for by the hour, so the more it answers, the less each request costs. No I/O."""

from marina.config.measured import Costs, Verdict, VerdictStatus
from marina.config.spec import Spec
from marina.loadtest.measuring import figure


def costs_of(spec: Spec, seen_rps: float, knee_rps: float | None = None) -> Costs | None:
    """The costs at the target rate and at the measured one; None if the spec has no `cost`."""
    cost, stated = spec.cost, spec.scaling.target_rps
    if cost is None:
        return None
    target = stated or (knee_rps and knee_rps * spec.scaling.knee_share)
    return Costs(
        currency=cost.currency,
        pod_hour=cost.pod_hour,
        target_rps=target,
        seen_rps=seen_rps,
        at_target=cost.per_10k(target) if target else None,
        at_seen=cost.per_10k(seen_rps) if seen_rps > 0 else None,
        budget=cost.budget_per_10k,
    )


def costs_text(costs: Costs) -> str:
    """`cost of 10,000 requests: 0.0047 USD at 100 requests/s per pod (target), …`."""
    parts = [
        f"{price:.3g} {costs.currency} at {figure(rate)} requests/s per pod ({name})"
        for price, rate, name in (
            (costs.at_target, costs.target_rps or 0.0, "target"),
            (costs.at_seen, costs.seen_rps, "measured"),
        )
        if price is not None
    ]
    return "cost of 10,000 requests: " + (", ".join(parts) or "unknown, none were answered")


def with_costs(verdict: Verdict, costs: Costs | None) -> Verdict:
    """The verdict; a missed budget makes it a FAIL, unless the measurement cannot be trusted."""
    over = costs.over if costs else None
    if over is None:
        return verdict
    status: VerdictStatus = "INVALID" if verdict.status == "INVALID" else "FAIL"
    return verdict.model_copy(update={"status": status, "reasons": (*verdict.reasons, over)})
