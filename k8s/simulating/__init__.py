"""A trace of traffic through the autoscaler's own algorithm: how many pods, how late, and what they cost; and whether
a real autoscaler that was recorded decided the same."""

from k8s.simulating.comparing import Comparison, compare_recorded
from k8s.simulating.drawing import simulation_html
from k8s.simulating.outcome import Simulation
from k8s.simulating.recorded import read_recording
from k8s.simulating.simulate import Supposed, simulate
from k8s.simulating.traffic import Trace, read_trace

__all__ = [
    "Comparison",
    "Simulation",
    "Supposed",
    "Trace",
    "compare_recorded",
    "read_recording",
    "read_trace",
    "simulate",
    "simulation_html",
]
