"""The knee of a record in words."""

from marina.config.measured import Knee
from marina.config.units import figure

MAY_HOLD_MORE = "the generator reached its limit, not the server: send the load from another machine to find more"


def knee_text(knee: Knee) -> str:
    """The knee as text: `at least 4,038 requests/s` if the generator was the limit."""
    return ("at least " if knee.limit == "generator" else "") + f"{figure(knee.rps)} requests/s"


def knee_interval_text(knee: Knee) -> str:
    """The knee's interval as text, `61.3 and 65 requests/s`; empty if there is none."""
    return " and ".join(map(figure, knee.interval)) + " requests/s" if knee.interval else ""
