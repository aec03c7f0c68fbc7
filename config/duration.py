"""The type of every option that takes a time."""

import argparse
import math
import re
from contextlib import suppress

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
HELP = "TIME is a number of seconds, or has units: 90s, 5m, 2h, 1h30m"


def duration_s(text: str) -> float:
    """The seconds in `90`, `90s`, `5m`, `2h` or `1h30m`."""
    with suppress(ValueError):
        if math.isfinite(seconds := float(text)):
            return seconds
    if text and not _PART.sub("", text):
        return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    raise argparse.ArgumentTypeError(f"got `{text}`, allowed: seconds, or a time such as `90s`, `5m`, `2h` or `1h30m`")
