"""Reads a trace of real traffic: CSV or JSON lines with the time of each request and, if known, its sample."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from marina.config.errors import InputError, as_input_error, listed
from marina.loadtest.scheduling.arrivals import Trace

_HINT = (
    "write CSV lines such as `0.25,cat.jpg` or `2026-03-02T08:00:00.250Z,cat.jpg`, or JSON lines such as "
    '`{"time": 0.25, "sample": "cat.jpg"}`; samples are files next to the trace, and may be omitted on all lines'
)
# As seconds since 1970 this is after the year 5000, as milliseconds it is before 1974.
_MOST_SECONDS = 1e11
TraceRow = tuple[int, object, object]
"""Line number, time, sample; None for what is missing."""


def read_trace_file(file: Path, speed: float = 1.0, suffixes: Sequence[str] = ()) -> Trace:
    """Reads a trace, whose lines may be in any order, and plays it `speed` times as fast; InputError names a bad line.

    Samples must end in one of `suffixes`."""
    with as_input_error(f"{file}: the trace cannot be read", hint=_HINT):
        text = file.read_text(encoding="utf-8-sig")
    rows = _from_json(file, text) if file.suffix in (".jsonl", ".ndjson") else _from_csv(file, text)
    arrivals = [(_time(file, number, time), number, sample) for number, time, sample in rows]
    arrivals.sort(key=lambda arrival: arrival[:2])
    first, last = (arrivals[0][0], arrivals[-1][0]) if arrivals else (0.0, 0.0)
    if last <= first:
        text = f"{file}: holds {len(arrivals)} requests, allowed: two or more, at different times"
        raise InputError(text, hint=_HINT)
    samples = _samples(file, [(number, sample) for _, number, sample in arrivals], suffixes)
    places = {sample: place for place, sample in enumerate(dict.fromkeys(samples))}
    return Trace(
        times=tuple(round((time - first) / speed, 6) for time, _, _ in arrivals),
        # Before the trace is repeated there is a gap of the mean length.
        length_s=(last - first) / speed * len(arrivals) / (len(arrivals) - 1),
        samples=tuple(places),
        which=tuple(places[sample] for sample in samples),
    )


def _from_csv(file: Path, text: str) -> Iterator[TraceRow]:
    # `splitlines` would also cut a field at characters such as U+2028; `strict` refuses a quote that is never closed,
    # which would swallow the rest of the trace.
    reader, time_at, sample_at = csv.reader(text.split("\n"), strict=True), 0, 1
    try:
        for fields in reader:
            cells = [field.strip() for field in fields]
            if not any(cells):
                continue
            if "time" in cells:
                time_at, sample_at = cells.index("time"), cells.index("sample") if "sample" in cells else len(cells)
                continue
            padded = cells + [""] * (max(time_at, sample_at) + 1 - len(cells))
            yield reader.line_num, padded[time_at], padded[sample_at] or None
    except csv.Error as err:
        raise InputError(f"{file}:{reader.line_num}: cannot be read: {err}", hint=_HINT) from err


def _from_json(file: Path, text: str) -> Iterator[TraceRow]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise InputError(f"{file}:{number}: not JSON: {err}", hint=_HINT) from err
        if not isinstance(fields, dict):
            raise InputError(f"{file}:{number}: got `{line[:80]}`, allowed: an object", hint=_HINT)
        yield number, fields.get("time"), fields.get("sample")


def _time(file: Path, number: int, value: object) -> float:
    """The time of a line in seconds, from any origin."""
    place = f"{file}:{number}: time: got {'nothing' if value in (None, '') else f'`{value}`'}"
    try:
        seconds = math.nan if isinstance(value, bool) else float(str(value))
        if seconds >= _MOST_SECONDS and math.isfinite(seconds):
            raise InputError(f"{place}, allowed: seconds, not a part of them", hint=_HINT)
        if math.isfinite(seconds):
            return seconds
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(str(value))
        # A time without a zone must not depend on this machine's, whose clock may jump by an hour in the trace.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as err:
        raise InputError(f"{place}, allowed: seconds, or a date and time in ISO 8601", hint=_HINT) from err


def _samples(file: Path, named: list[tuple[int, object]], suffixes: Sequence[str]) -> list[str]:
    """The sample file of each arrival; empty if no line names one."""
    if all(sample is None for _, sample in named):
        return []
    known: dict[str, str] = {}
    for number, sample in sorted(named, key=lambda entry: entry[0]):
        got = f"{file}:{number}: sample: got {'nothing' if sample is None else f'`{sample}`'}"
        if not isinstance(sample, str):
            raise InputError(f"{got}, allowed: a file, as on other lines", hint=_HINT)
        place = file.parent / sample
        if sample not in known and not place.is_file():
            raise InputError(f"{got}, but there is no file {place}", hint=_HINT)
        if place.suffix.lower() not in suffixes:
            raise InputError(f"{got}, allowed: files that end in {listed(sorted(suffixes))}", hint=_HINT)
        known[sample] = str(place)
    return [known[str(sample)] for _, sample in named]
