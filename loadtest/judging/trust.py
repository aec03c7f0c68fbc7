"""The reasons not to trust a run as a whole: another package, an early end, a generator that was held back. No I/O."""

from collections.abc import Iterator

from marina.config.measured import Objective, Reason
from marina.loadtest.judging.certainty import P99_SHARE
from marina.loadtest.measuring import Measurement, nearest_rank

BUSY_CPU = 0.9
WHOLE_SHARE = 0.99
# These are the fault of the generator or its machine, not of the server, its package or a user who stopped the run.
GENERATOR_REASONS = frozenset(
    {"generator-saturated", "generator-stalled", "arrivals-late", "arrivals-dropped", "lag-decides"}
)


def distrust_reasons(measurement: Measurement, objective: Objective) -> list[Reason]:
    """Every reason not to trust a run, the most serious first; empty for a run that can be trusted."""
    return [
        *_wrong_package(measurement),
        *_not_run(measurement),
        *_lost(measurement),
        *_held_back(measurement, objective),
    ]


def server_died_reasons(measurement: Measurement) -> list[Reason]:
    """The reason for a FAIL if the server died during the run, and it was the right server."""
    if measurement.server_end is None or "package-differs" in {reason.id for reason in _wrong_package(measurement)}:
        return []
    return [Reason(id="server-died", text=f"the server died during the run: {measurement.server_end}")]


def busy_machine_reasons(measurement: Measurement) -> list[Reason]:
    """The reason why the server may have looked slower than it is, if other processes used its machine."""
    others = measurement.others
    if others is None or not others.disturb:
        return []
    return [Reason(id="machine-busy", text=f"{others}; without them the same server may pass")]


def _wrong_package(measurement: Measurement) -> Iterator[Reason]:
    identity = measurement.identity
    if identity is None or (identity.found is not None and identity.found == identity.wanted):
        return
    if identity.found is None or identity.wanted is None:
        text = identity.why_unknown or "the server does not say which package it serves"
        yield Reason(id="package-unknown", text=text)
    else:
        text = f"the server serves package {identity.found[:12]}, but the spec's is {identity.wanted[:12]}"
        yield Reason(id="package-differs", text=text)


def _not_run(measurement: Measurement) -> Iterator[Reason]:
    if not measurement.sent and measurement.warmup:
        text = f"all {measurement.warmup:,} requests belonged to the warm-up, so nothing was measured"
        yield Reason(id="warm-up-only", text=text)
    elif not measurement.sent:
        yield Reason(id="no-samples", text="no request was sent in the measured window")
    elif measurement.limited == measurement.sent:
        text = f"all {measurement.limited:,} requests were refused with 429, so nothing was measured"
        yield Reason(id="no-samples", text=text)
    if measurement.ran_s < WHOLE_SHARE * measurement.asked_s:
        text = f"the run ended after {measurement.ran_s:.1f} s of {measurement.asked_s:g} s"
        yield Reason(id="cut-short", text=text)
    elif measurement.interrupted and (unanswered := _uncounted(measurement)):
        yield Reason(id="cut-short", text=f"the run ended while {unanswered:,} requests waited for their answers")


def _lost(measurement: Measurement) -> Iterator[Reason]:
    """Reasons if requests are missing in the counts: what was neither answered nor failed could have been anything."""
    lost = _uncounted(measurement)
    if measurement.lost_processes:
        names = ", ".join(measurement.lost_processes)
        text = f"generator process {names} ended or stopped answering, so its counts are missing"
        yield Reason(id="process-lost", text=text)
    elif lost and not measurement.interrupted:
        sent = f"{lost:,} of {measurement.sent:,} requests were sent"
        yield Reason(id="requests-lost", text=f"{sent}, but counted neither as answered nor as failed")


def _uncounted(measurement: Measurement) -> int:
    """Requests that were sent, but of which nothing is known."""
    return measurement.sent - measurement.finished - measurement.limited


def _held_back(measurement: Measurement, objective: Objective) -> Iterator[Reason]:
    """Reasons if the generator, not the server, shaped the latencies."""
    for number, beats in enumerate(measurement.generators, 1):
        busy = [beat for beat in beats if beat.cpu >= BUSY_CPU]
        if busy and len(busy) > len(beats) - nearest_rank(P99_SHARE, len(beats)):
            which = f"generator process {number}" if len(measurement.generators) > 1 else "the generator"
            most = max(beat.cpu for beat in busy)
            text = f"{which} used up to {most:.0%} of its core, over {BUSY_CPU:.0%} in {len(busy)} of {len(beats)} s"
            yield Reason(id="generator-saturated", text=text)
    stall, late = measurement.loop_lag.percentile(P99_SHARE), measurement.lag.percentile(P99_SHARE)
    if stall is not None and stall > objective.coarse_ms:
        text = f"the generator's event loop was {stall:.1f} ms late at p99, allowed: {objective.coarse_ms:g} ms"
        yield Reason(id="generator-stalled", text=text)
    if late is not None and late > objective.late_ms:
        text = f"requests were sent {late:.1f} ms late at p99, allowed: {objective.late_ms:g} ms"
        yield Reason(id="arrivals-late", text=text)
    if measurement.starts_ms:
        apart_ms = max(measurement.starts_ms) - min(measurement.starts_ms) + measurement.clocks_ms
        if apart_ms > objective.late_ms:
            text = f"the generator processes started up to {apart_ms:.1f} ms apart, allowed: {objective.late_ms:g} ms"
            yield Reason(id="processes-apart", text=text)
    if measurement.dropped:
        text = f"{measurement.dropped:,} requests were not sent, because too many others were open"
        yield Reason(id="arrivals-dropped", text=text)
    if unsent := measurement.errors.get("unsent"):
        text = f"{unsent:,} requests were not sent, because this machine had nothing left for another connection"
        yield Reason(id="arrivals-dropped", text=f"{text}, such as a free port")
