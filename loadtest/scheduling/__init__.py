"""When each request of a run is due, by random times or by a recorded trace. Nothing is sent here."""

from marina.loadtest.scheduling.arrivals import Schedule, Spacing, Trace
from marina.loadtest.scheduling.trace_file import read_trace_file

__all__ = ["Schedule", "Spacing", "Trace", "read_trace_file"]
