"""Traffic to replay: recorded in a file, a step, or a working day."""

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from marina.config.errors import InputError, reason_of

_DAY_S = 86_400
_WEEK_S, _RECORDED_S = 7 * _DAY_S, 300
_LONGEST_S = 35 * _DAY_S
# In seconds, later times would be after the year 5000: they are rather milliseconds.
_LATEST_S = 1e11
_MOST_RPS = 1e9
_BEFORE_STEP_S, _STEP_S, _AFTER_STEP_S = 300, 1800, 1800


@dataclass(frozen=True)
class TrafficTrace:
    """The requests/s in every second."""

    name: str
    rates: Sequence[float]
    step_s: int | None = None
    """The second of the step, if the traffic is a step."""

    @property
    def has_weeks(self) -> bool:
        """Whether it is long enough to be its own past for a weekly forecast."""
        return len(self.rates) > _WEEK_S + _DAY_S

    def rates_in_past_weeks(self, at_s: int) -> list[float]:
        """The rates at this second in each of the last three weeks, as means over five minutes, as the recording rule
        has them. Short traffic is assumed to have been the same in each week."""
        weeks = [at_s - week * _WEEK_S for week in (1, 2, 3)] if self.has_weeks else [at_s]
        return [self._mean(end) for end in weeks if 0 < end <= len(self.rates)]

    def _mean(self, end_s: int) -> float:
        start_s = max(0, end_s - _RECORDED_S)
        return (self._sums[end_s] - self._sums[start_s]) / (end_s - start_s)

    @cached_property
    def _sums(self) -> list[float]:
        return list(accumulate(self.rates, initial=0.0))


def step_traffic(base_rps: float, factor: float) -> TrafficTrace:
    """Traffic that rises to `factor` times `base_rps` for half an hour, and falls back."""
    low, high = [base_rps], [base_rps * factor]
    rates = low * _BEFORE_STEP_S + high * _STEP_S + low * _AFTER_STEP_S
    return TrafficTrace(f"a step to {factor:g} times {base_rps:g} requests/s", rates, step_s=_BEFORE_STEP_S)


def day_traffic(peak_rps: float) -> TrafficTrace:
    """A working day: quiet until six, a steep morning, a dip at noon, a second peak, and a slow decline until night."""
    hours = (0, 6, 9, 11, 13, 15, 18, 22, 24)
    shares = (0.15, 0.12, 0.8, 1.0, 0.75, 0.95, 0.6, 0.3, 0.15)
    rates = []
    for second in range(_DAY_S):
        hour = second / 3600
        index = bisect_right(hours, hour) - 1
        part = (hour - hours[index]) / (hours[index + 1] - hours[index])
        eased = (1 - math.cos(math.pi * part)) / 2
        rates.append(peak_rps * (shares[index] + (shares[index + 1] - shares[index]) * eased))
    return TrafficTrace(f"a day with a peak of {peak_rps:g} requests/s", rates)


def read_traffic(file: Path) -> TrafficTrace:
    """Reads a CSV of ascending times (seconds or ISO, in UTC unless they say otherwise) and requests/s; each rate lasts
    until the next row."""
    rows = _rows(file)
    starts = [at - rows[0][0] for at, _ in rows]
    last_s = median(after - before for before, after in pairwise(starts))
    duration = math.ceil(starts[-1] + last_s)
    if duration > _LONGEST_S:
        raise InputError(f"{file}: spans {duration / _DAY_S:.0f} days, allowed: {_LONGEST_S // _DAY_S} at most")
    rates, index = [], 0
    for second in range(duration):
        while index + 1 < len(starts) and starts[index + 1] <= second:
            index += 1
        rates.append(rows[index][1])
    return TrafficTrace(str(file), rates)


def _rows(file: Path) -> list[tuple[float, float]]:
    hint = "lines of `TIME,REQUESTS_PER_S`, such as `2026-03-02T08:00:00Z,140` or `0,140`"
    rows: list[tuple[float, float]] = []
    try:
        lines = list(csv.reader(file.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InputError(f"{file}: cannot be read: {reason_of(err)}", hint=hint) from err
    for number, line in enumerate(lines, 1):
        if not "".join(line).strip() or (number == 1 and _time(line[0]) is None and _number(line[-1]) is None):
            continue  # an empty line, a header
        at, rate = _time(line[0]), _number(line[-1])
        if len(line) != 2 or at is None or abs(at) > _LATEST_S or rate is None or not 0 <= rate <= _MOST_RPS:
            allowed = f"allowed: a time (seconds or ISO) and a rate from 0 to {_MOST_RPS:g}"
            raise InputError(f"{file}:{number}: got `{','.join(line)}`, {allowed}", hint=hint)
        if rows and at <= rows[-1][0]:
            raise InputError(f"{file}:{number}: got `{line[0]}`, allowed: ascending times", hint=hint)
        if rows and int(at - rows[0][0]) == int(rows[-1][0] - rows[0][0]):
            raise InputError(f"{file}:{number}: got `{line[0]}`, allowed: one rate a second", hint=hint)
        rows.append((at, rate))
    if len(rows) < 2:
        raise InputError(f"{file}: holds {len(rows)} rates, allowed: two or more", hint=hint)
    return rows


def _time(text: str) -> float | None:
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
