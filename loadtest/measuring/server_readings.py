"""The memory and open files of a server's processes during a soak, read from the supervisor's metrics."""

import threading
import time
from collections.abc import Callable

from pydantic import Field

from marina.config.record import Part

_KINDS = {
    f"marina_{of}{series}": kind
    for of in ("", "worker_")
    for series, kind in (("resident_memory_bytes", "memory"), ("open_files", "files"), ("restarts_total", "restarts"))
}
_READINGS, _OFTEN_S, _SELDOM_S = 360, 0.5, 30.0


class ServerReading(Part):
    """One reading of all processes."""

    at_s: float
    """From the start of the warm-up."""
    memory: dict[str, float] = Field(default_factory=dict)
    """Resident bytes of each process."""
    files: dict[str, float] = Field(default_factory=dict)
    restarts: dict[str, float] = Field(default_factory=dict)
    start_s: float | None = None
    """How long the server took to start: another one if it was started again."""


class ServerReadings(Part):
    readings: tuple[ServerReading, ...] = ()
    missed: int = 0
    """How often the page could not be read."""
    why: str | None = None
    """The last error."""


class ServerWatch:
    """Reads the metrics page again and again in a separate thread, as long as the context is open."""

    def __init__(self, page: Callable[[], str], total_s: float) -> None:
        self._page = page
        self._every_s = min(_SELDOM_S, max(_OFTEN_S, total_s / _READINGS))
        self._readings: list[ServerReading] = []
        self._missed, self._why = 0, ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "ServerWatch":
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def vitals(self) -> ServerReadings:
        """The readings so far."""
        return ServerReadings(readings=tuple(self._readings), missed=self._missed, why=self._why or None)

    def _read(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self._readings.append(parse_reading(self._page(), time.monotonic() - self._begun))
            except (OSError, ValueError) as err:
                self._missed, self._why = self._missed + 1, str(err)


def parse_reading(text: str, at_s: float) -> ServerReading:
    """Reads memory, open files and restarts of each process from a supervisor's metrics page; ValueError if it is not
    such a page."""
    # The processes that send load import this package, and do not need it.
    from prometheus_client.parser import text_string_to_metric_families

    kinds: dict[str, dict[str, float]] = {kind: {} for kind in _KINDS.values()}
    start_s = None
    for sample in (each for family in text_string_to_metric_families(text) for each in family.samples):
        if sample.name == "marina_start_duration_seconds":
            start_s = sample.value
        elif sample.name in _KINDS:
            worker = sample.labels.get("worker")
            kinds[_KINDS[sample.name]][f"worker {worker}" if worker else sample.labels.get("process", "")] = (
                sample.value
            )
    return ServerReading(at_s=at_s, start_s=start_s, **kinds)
