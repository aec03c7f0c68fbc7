"""The records of what a run measures: histograms, counts, the machine. Nothing is sent or judged here."""

from marina.loadtest.measuring.histogram import Histogram, bucket_ms, nearest_rank
from marina.loadtest.measuring.machine import (
    MB,
    Machine,
    PeakMemory,
    cpu_seconds,
    descendants,
    peak_memory,
    this_machine,
)
from marina.loadtest.measuring.measurement import (
    GeneratorHealth,
    Measurement,
    PackageIdentity,
    PodShare,
    Second,
    Slice,
    merge_measurements,
    merge_pod_shares,
    merge_seconds,
    merge_slices,
)
from marina.loadtest.measuring.other_processes import OtherProcessesWatch
from marina.loadtest.measuring.server_readings import ServerReading, ServerReadings, ServerWatch, parse_reading
from marina.loadtest.measuring.streams import Latencies, Streams, add_up, merge_histograms, merge_streams
from marina.loadtest.measuring.units import figure, percent, utc_now

__all__ = [
    "MB",
    "GeneratorHealth",
    "Histogram",
    "Latencies",
    "Machine",
    "Measurement",
    "OtherProcessesWatch",
    "PackageIdentity",
    "PeakMemory",
    "PodShare",
    "Second",
    "ServerReading",
    "ServerReadings",
    "ServerWatch",
    "Slice",
    "Streams",
    "add_up",
    "bucket_ms",
    "cpu_seconds",
    "descendants",
    "figure",
    "merge_histograms",
    "merge_measurements",
    "merge_pod_shares",
    "merge_seconds",
    "merge_slices",
    "merge_streams",
    "nearest_rank",
    "parse_reading",
    "peak_memory",
    "percent",
    "this_machine",
    "utc_now",
]
