"""The records of what a run measures: histograms, counts, the machine. Nothing is sent or judged here."""

from marina.config.histogram import Histogram, bucket_ms, nearest_rank
from marina.config.units import figure, percent, utc_now
from marina.loadtest.measuring.machine import (
    MB,
    OtherProcesses,
    OtherProcessesWatch,
    cpu_seconds,
    peak_memory,
    process_tree,
    this_machine,
)
from marina.loadtest.measuring.measurement import (
    GeneratorHealth,
    Latencies,
    Measurement,
    PackageIdentity,
    PodShare,
    Second,
    Slice,
    Streams,
    merge_histograms,
    merge_measurements,
    merge_seconds,
    merge_streams,
    pool,
)
from marina.loadtest.measuring.server_readings import ServerReading, ServerReadings, ServerWatch, parse_reading

__all__ = [
    "MB",
    "GeneratorHealth",
    "Histogram",
    "Latencies",
    "Measurement",
    "OtherProcesses",
    "OtherProcessesWatch",
    "PackageIdentity",
    "PodShare",
    "Second",
    "ServerReading",
    "ServerReadings",
    "ServerWatch",
    "Slice",
    "Streams",
    "bucket_ms",
    "cpu_seconds",
    "figure",
    "merge_histograms",
    "merge_measurements",
    "merge_seconds",
    "merge_streams",
    "nearest_rank",
    "parse_reading",
    "peak_memory",
    "percent",
    "pool",
    "process_tree",
    "this_machine",
    "utc_now",
]
