"""The line that is updated every second during a run: rate, p50, p99, errors, and the generator. Only on a terminal."""

import sys
from collections.abc import Sequence
from typing import TextIO

from marina.config.progress import replace_line
from marina.loadtest.measuring import GeneratorHealth, Second
from marina.loadtest.reporting.text import ms
from marina.loadtest.scheduling import Schedule


class LiveLine:
    """The line of one run; leaving the context clears it."""

    def __init__(self, label: str, schedule: Schedule, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._label = label
        self._schedule = schedule
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() and not quiet

    def __enter__(self) -> "LiveLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            replace_line("", self._stream)

    def show(self, second: int, ended: Second, beats: Sequence[GeneratorHealth]) -> None:
        """Shows the requests that ended in one second."""
        if self._shown:
            replace_line(live_text(self._label, self._schedule, second, ended, beats), self._stream)


def live_text(label: str, schedule: Schedule, second: int, ended: Second, beats: Sequence[GeneratorHealth]) -> str:
    left = max(0.0, schedule.total_s - second)
    phase = "warm-up" if second <= schedule.warmup_s else f"{left:3.0f} s left"
    errors = ", ".join(f"{count} {name}" for name, count in ended.errors.items()) or "none"
    cpu, lag = max(beat.cpu for beat in beats), max(beat.loop_lag_ms for beat in beats)
    p50, p99 = (ms(ended.response.percentile(share)) for share in (0.5, 0.99))
    return (
        f"  {label}  {phase}  {ended.answered:,}/s  p50 {p50}  p99 {p99}  errors {errors}  "
        f"generator {cpu:.0%} cpu, {lag:.0f} ms late"
    )
