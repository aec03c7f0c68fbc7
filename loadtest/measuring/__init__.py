"""What a run measures, as records: histograms, counts, the machine. Nothing is sent or judged here."""

from loadtest.measuring.histogram import Histogram, bucket_ms, nearest_rank
from loadtest.measuring.machine import MB, Machine, Memory, cpu_seconds, descendants, peak_memory, this_machine
from loadtest.measuring.measurement import (
    Beat,
    Identity,
    Measurement,
    Second,
    Slice,
    merge,
    merge_seconds,
    merge_slices,
)
from loadtest.measuring.others import Others, Watch
from loadtest.measuring.shares import Share, merge_shares
from loadtest.measuring.streams import Latencies, Streams, merge_streams, merged
from loadtest.measuring.units import figure, percent
from loadtest.measuring.vitals import Reading, Vitals, VitalsWatch, reading_of

__all__ = [
    "MB",
    "Beat",
    "Histogram",
    "Identity",
    "Latencies",
    "Machine",
    "Measurement",
    "Memory",
    "Others",
    "Reading",
    "Second",
    "Share",
    "Slice",
    "Streams",
    "Vitals",
    "VitalsWatch",
    "Watch",
    "bucket_ms",
    "cpu_seconds",
    "descendants",
    "figure",
    "merge",
    "merge_seconds",
    "merge_shares",
    "merge_slices",
    "merge_streams",
    "merged",
    "nearest_rank",
    "peak_memory",
    "percent",
    "reading_of",
    "this_machine",
]
