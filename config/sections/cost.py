"""The section of a spec about what a pod costs, and what requests may cost."""

from typing import Annotated

from marina.config.sections.section import Positive, Section, matching

_HOUR_S, _REQUESTS = 3600, 10_000


class Cost(Section):
    """What a pod costs; the load test, the calibration, the comparison and the dashboard then show what 10,000 requests
    cost."""

    pod_hour: Positive
    """What one pod costs for an hour, in `currency`, whether it is used or not. Lands in the recording rule."""
    currency: Annotated[str, matching(r"^[A-Z]{3}$", "three capital letters such as `USD`")] = "USD"
    """Three capital letters. Lands in the reports and the dashboard."""
    budget_per_10k: Positive | None = None
    """What 10,000 requests may cost at the target rate of a pod, or at the measured rate if that is not known; if they
    cost more, the verdict is FAIL `over-budget`. Lands in the dashboard; default: no limit."""

    def per_10k(self, rps: float) -> float:
        """What 10,000 requests cost if a pod answers `rps` requests/s; idle time costs as much as any other."""
        return self.pod_hour / _HOUR_S / rps * _REQUESTS
