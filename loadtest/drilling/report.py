"""A drill in words, and its three files: `drill.json`, `drill.xml` (JUnit) and `drill.html`."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from marina.config.pages import Axis, Bars, Chart, Drawing, Line, linear_axis, log_axis, milliseconds, render_template
from marina.config.record import write_text
from marina.loadtest.drilling.record import DrillCheck, DrillRecord
from marina.loadtest.measuring import figure, percent
from marina.loadtest.reporting import JUnitCase, arrivals_text, suite_xml, texts_by_id

_MEANING = {
    "PASS": "Clients saw nothing of it that the objective does not allow.",
    "FAIL": "Clients saw it, or the service did not come back in time.",
    "INVALID": "The drill says nothing about the service.",
}
_TITLES = {"p99": "p99", "ttft": "first text p99", "itl": "between pieces of text p99"}


def drill_text(record: DrillRecord) -> str:
    """The verdict as a few lines for the terminal."""
    figures = ", ".join(_check_text(check) for check in record.checks) or "nothing was judged"
    lines = [f"drill {record.broken.kind}: {record.status} {figures}"]
    lines += [f"  {reason.id}: {reason.text}" for reason in record.every_reason()]
    return "\n".join([*lines, *(f"  {note}" for note in _notes(record))])


def write_drill(record: DrillRecord, folder: Path) -> Path:
    """Writes the three files, each atomically; returns the page."""
    page = folder / "drill.html"
    write_text(folder / "drill.json", json.dumps(record.to_data(), sort_keys=True) + "\n")
    write_text(folder / "drill.xml", _xml(record))
    write_text(page, _html(record))
    return page


def _check_text(check: DrillCheck) -> str:
    value = _value(check, check.measured)
    if check.figure == "lost":
        return f"{value} lost"
    if check.figure == "pods":
        return f"enough pods after {value}" if check.measured is not None else "too few pods"
    sign = "<=" if (check.measured or 0) <= check.limit else ">"
    name = "errors" if check.figure == "errors" else _TITLES[check.figure]
    return f"{name} {value} {sign} {_value(check, check.limit)}" if check.measured is not None else f"{name} unknown"


def _title(check: DrillCheck) -> str:
    limit = _value(check, check.limit)
    if check.figure == "lost":
        return "no request lost"
    if check.figure == "pods":
        return f"enough pods within {limit}"
    return f"{'errors' if check.figure == 'errors' else _TITLES[check.figure]} at most {limit}"


def _value(check: DrillCheck, value: float | None) -> str:
    if value is None:
        return "-"
    if check.unit == "share":
        return percent(value)
    return f"{value:,.0f}" if check.unit == "requests" else f"{figure(float(f'{value:.3g}'))} {check.unit}"


def _notes(record: DrillRecord) -> Iterator[str]:
    broken, fewest = record.broken, min((at.serving for at in record.broken.pods), default=None)
    if broken.begun_s is None:
        return
    within = f" within the notice of {broken.notice_s:g} s" if broken.notice_s is not None else ""
    yield f"{record.judged:,} requests were due from the break on{within}"
    if record.lost_after:
        named = ", ".join(f"{count:,} {name}" for name, count in record.lost_after.items())
        yield f"not judged, after the notice, when the pod had ended and was still an endpoint: {named}"
    if fewest is not None:
        yield f"at the worst moment {fewest} of {broken.pods[-1].wanted} pods served"


def _xml(record: DrillRecord) -> str:
    cases = [JUnitCase(_title(check), check.status, check.reasons) for check in record.checks]
    if record.reasons or not cases:
        cases.insert(0, JUnitCase("can be trusted", record.status, record.reasons))
    properties = {"url": record.url, "broken": "; ".join(record.broken.what), "load": _load(record)}
    return suite_xml("drill", record.name, cases, properties, at=record.at, seconds=record.measurement.ran_s)


def _load(record: DrillRecord) -> str:
    sent = f"{figure(record.rate)} requests/s, {arrivals_text(record.arrivals)}"
    return f"{sent}, for {figure(record.measurement.window_s)} s"


def _html(record: DrillRecord) -> str:
    name = f"{record.name} {record.version}: {record.broken.kind}"
    return render_template(
        Path(__file__).with_name("drill.html"),
        title=f"{record.status}: {name}",
        heading=name,
        status=record.status,
        meaning=_MEANING[record.status],
        checks=[(_title(check), _value(check, check.measured), check.status) for check in record.checks],
        reasons=texts_by_id(record.every_reason()),
        notes=list(_notes(record)),
        drawings=_charts(record),
        facts={
            "Broken": "; ".join(record.broken.what),
            "Namespace": record.namespace,
            "Server": record.url,
            "Load": _load(record),
            "Machine of the generator": f"{record.machine}, {record.machine.system}",
            "Started": record.at,
        },
    )


def _charts(record: DrillRecord) -> list[Drawing]:
    seconds, broken = record.measurement.seconds, record.broken
    whole = max(1, len(seconds), *(math.ceil(at.at_s) for at in broken.pods))
    ticks = [(value, f"{value:g} s") for value, _ in linear_axis(0, whole).ticks if value <= whole]
    time = Axis(lambda value: value / whole, ticks)
    end = broken.enough_s if broken.enough_s is not None else whole
    shaded = [] if broken.begun_s is None else [(broken.begun_s, min(end, whole))]
    too_few = {"from the break to enough pods": "ink-shade block"}
    pods = Chart(
        title="Pods",
        x=time,
        y=linear_axis(0, max([1, *(max(at.serving, at.wanted) for at in broken.pods)])),
        lines=[
            Line("wanted", "two", [(at.at_s, float(at.wanted)) for at in broken.pods]),
            Line("serving", "one", [(at.at_s, float(at.serving)) for at in broken.pods]),
        ],
        shaded=shaded,
    )
    lost = [(float(at), float(sum(second.errors.values()))) for at, second in enumerate(seconds)]
    errors = Chart(
        title="Lost requests",
        x=time,
        y=linear_axis(0, max([4, *(count for _, count in lost)])),
        bars=[Bars("lost", "e1", lost)],
        shaded=shaded,
    )
    tail = [(at + 0.5, second.response.percentile(0.99)) for at, second in enumerate(seconds)]
    limit = record.objective.p99_ms
    values = [limit, *(value for _, value in tail if value is not None)]
    latency = Chart(
        title="Latency",
        x=time,
        y=log_axis(max(0.01, min(values)), max(values), milliseconds),
        lines=[Line("p99", "one", tail)],
        limit=limit,
        shaded=shaded,
    )
    return [
        Drawing(pods, "Pods that served", {"serving": "ink-one", "wanted": "ink-two", **too_few}),
        Drawing(
            errors, "Requests without a good answer, by the second they were due in", {"lost": "e1 block", **too_few}
        ),
        Drawing(latency, "p99 of the requests due in each second", {"p99": "ink-one", "p99 limit": "ink-limit dash"}),
    ]
