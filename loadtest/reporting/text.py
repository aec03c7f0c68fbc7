"""A verdict as text: for the terminal, for the tables of pages, for names of test cases."""

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from marina.config.measured import Check, Reason, Verdict
from marina.config.progress import replace_line
from marina.loadtest.judging import StreamFigures, interval_text
from marina.loadtest.measuring import GeneratorHealth, Measurement, PodShare, Second, figure, percent
from marina.loadtest.scheduling import Schedule, Spacing

_TITLES = {"ttft": "first text: ", "itl": "between pieces of text: "}
_ARRIVALS: dict[Spacing, str] = {
    "constant": "evenly spaced arrivals",
    "poisson": "Poisson arrivals",
    "replay": "replayed arrivals",
}

_GROWING = {"memory": "memory grows", "files": "open files grow", "drift": "response time grows"}
_UNSTEADY = "but not steadily"


def verdict_lines(verdict: Verdict, measured: Measurement, arrivals: Spacing = "poisson") -> str:
    """`slo: FAIL p99 412 ms > 250 ms, …, 18,240 requests in 608 s`, then each reason on its own line.

    Arrivals are named unless they are random: a server looks better with evenly spaced ones, and replayed ones belong
    to one trace."""
    spacing = f", {arrivals_text(arrivals)}" if arrivals != "poisson" else ""
    length = f"{measured.finished:,} requests in {figure(measured.ran_s)} s"
    if measured.limited:
        length += f", {limited_text(measured)}"
    lines = [f"slo: {verdict.status} {figures_text(verdict)}, {length}{spacing}"]
    return "\n".join([*lines, *(f"  {reason.id}: {reason.text}" for reason in verdict.every_reason())])


def limited_text(measured: Measurement) -> str:
    """How many requests a rate limit refused: `3,120 more refused with 429`."""
    return f"{measured.limited:,} more refused with 429"


def arrivals_text(arrivals: Spacing) -> str:
    """How requests are spaced, in words."""
    return _ARRIVALS[arrivals]


def figures_text(verdict: Verdict) -> str:
    """Each measured figure with its limit."""
    return ", ".join(check_text(check) for check in verdict.checks)


def check_text(check: Check) -> str:
    """One measured figure with its limit: `p99 412 ms (380 to 431 ms) > 250 ms`."""
    if check.measured is None:
        return f"{check.objective} not measured"
    if check.unit == "requests/s":
        return f"{figure(check.measured)} of {figure(check.limit)} requests/s"
    if check.objective == "goodput":
        return f"goodput {percent(check.measured)} of {percent(check.limit)}"
    sign = "<=" if check.measured <= check.limit else ">"
    if check.unit == "share":
        unsteady = f", {_UNSTEADY}" if _is_unsteady(check) else ""
        return f"{check.objective} {percent(check.measured)} {sign} {percent(check.limit)}{unsteady}"
    between = f" ({interval_text(check)})" if check.interval else ""
    name = check.objective if check.objective == "p99" else f"{check.objective} p99"
    return f"{name} {figure(check.measured)} ms{between} {sign} {figure(check.limit)} ms"


def interval_note(check: Check) -> str:
    """The note below a figure: its interval, or why growth over the limit does not count as growth."""
    return _UNSTEADY if _is_unsteady(check) else interval_text(check)


def _is_unsteady(check: Check) -> bool:
    return check.objective in _GROWING and check.status == "PASS" and (check.measured or 0) > check.limit


def reason_items(reasons: Iterable[Reason]) -> list[str]:
    """Reasons as a list in Markdown."""
    return [f"- `{reason.id}`: {reason.text}" for reason in reasons]


def check_title(check: Check) -> str:
    """What must hold: `p99 at most 250 ms`."""
    if check.objective == "errors":
        return f"errors at most {percent(check.limit)}"
    if check.objective in _GROWING:
        return f"{_GROWING[check.objective]} by at most {percent(check.limit)}"
    if check.objective == "goodput":
        return f"{percent(check.limit)} of requests meet every objective"
    if check.objective == "throughput":
        return f"holds {figure(check.limit)} requests/s"
    return f"{_TITLES.get(check.objective, '')}p99 at most {figure(check.limit)} ms"


def pod_share_text(share: PodShare) -> str:
    """What one pod answered: `digits-7c9f-x2b4z answered 600, p99 12 ms`."""
    p99 = share.response.percentile(0.99)
    slow = "" if p99 is None else f", p99 {figure(p99)} ms"
    return f"{share.name} answered {share.good:,}{slow}{f', {share.failed:,} failed' if share.failed else ''}"


def texts_by_id(reasons: Iterable[Reason]) -> dict[str, list[str]]:
    """The texts of the reasons, grouped by id, in their order."""
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        texts.setdefault(reason.id, []).append(reason.text)
    return texts


def stream_facts(pieces: StreamFigures | None) -> dict[str, str]:
    """The summary of streamed answers, as rows of a table; empty if answers were not streamed."""
    if pieces is None:
        return {}
    shown = {"First text (TTFT)": pieces.ttft, "Between pieces (ITL)": pieces.itl, "Per token (TPOT)": pieces.tpot}
    texts = {
        name: f"p50 {ms(latency.p50)}, p99 {ms(latency.p99)}, slowest {ms(latency.max)}"
        for name, latency in shown.items()
    }
    cached = f"{pieces.cached_share:.0%} of the prompts' tokens from a cache"
    return texts | {
        "Goodput": f"{figure(pieces.goodput_rps)} requests/s met every objective, {percent(pieces.goodput)} of all",
        "Tokens": f"{figure(pieces.tokens_per_s)} tokens/s written, {cached}",
        "Read late, p99": ms(pieces.heard_late_ms),
    }


def stream_lines(pieces: StreamFigures | None) -> list[str]:
    """The summary of streamed answers, as lines for a terminal."""
    return [f"  {name}: {text}" for name, text in stream_facts(pieces).items()]


def ms(value: float | None) -> str:
    """A latency with its unit, or a dash if there is none."""
    return "-" if value is None else f"{figure(value)} ms"


class LiveLine:
    """The line that is updated every second during a run, on a terminal only; leaving the context clears it."""

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
    errors += f"  limited {ended.limited}" if ended.limited else ""
    cpu, lag = max(beat.cpu for beat in beats), max(beat.loop_lag_ms for beat in beats)
    p50, p99 = (ms(ended.response.percentile(share)) for share in (0.5, 0.99))
    return (
        f"  {label}  {phase}  {ended.answered:,}/s  p50 {p50}  p99 {p99}  errors {errors}  "
        f"generator {cpu:.0%} cpu, {lag:.0f} ms late"
    )
