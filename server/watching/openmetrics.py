"""The page of all metrics in the form of OpenMetrics, where a bucket of latencies names a request whose trace shows why
it took so long: its exemplar. prometheus-client has none for several processes, and this page is not its own."""

import re
from collections.abc import Mapping

from marina.config.latency import EDGES_S
from marina.server.java.traffic import DurationHistogram

TYPE = "application/openmetrics-text"
CONTENT_TYPE = f"{TYPE}; version=1.0.0; charset=utf-8"
_DURATIONS = "inference_request_duration_seconds"
# An archive's counters have the names that their handler gives them, which OpenMetrics would not let a counter have.
_OTHER_COUNTER = re.compile(r"(?m)^# TYPE (\S+)(?<!_total) counter$")


def openmetrics(page: str, histograms: Mapping[int, DurationHistogram]) -> str:
    """A page in Prometheus' own form, with the exemplars of the latencies by status code."""
    # Imported late: see `metrics.py`.
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.samples import Exemplar
    from prometheus_client.utils import floatToGoString

    edges = [*map(floatToGoString, (*EDGES_S, float("inf")))]
    exemplars = {
        (str(code), edges[bucket]): Exemplar({"trace_id": each.trace, "span_id": each.span}, each.seconds, each.at)
        for code, histogram in histograms.items()
        for bucket, each in histogram.exemplars.items()
    }
    families = list(text_string_to_metric_families(_OTHER_COUNTER.sub(r"# TYPE \1 untyped", page)))
    for family in families:
        if family.name == _DURATIONS:
            family.samples = [
                sample._replace(exemplar=exemplars.get((sample.labels["code"], sample.labels.get("le", ""))))
                for sample in family.samples
            ]

    class Collected:
        def collect(self) -> object:
            return families

    text: bytes = generate_latest(Collected())  # type: ignore[no-untyped-call]
    return text.decode()
