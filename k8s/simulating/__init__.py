"""Replays traffic through the autoscaler's own algorithm: how many pods there are, how late they come, what they cost.
Also checks the algorithm against the recorded decisions of a real autoscaler."""

from marina.k8s.simulating.comparing import RecordedComparison, compare_recorded
from marina.k8s.simulating.drawing import simulation_html
from marina.k8s.simulating.recording import read_recording
from marina.k8s.simulating.simulate import SimulationOptions, simulate
from marina.k8s.simulating.simulation import Simulation
from marina.k8s.simulating.traffic import TrafficTrace, read_traffic

__all__ = [
    "RecordedComparison",
    "Simulation",
    "SimulationOptions",
    "TrafficTrace",
    "compare_recorded",
    "read_recording",
    "read_traffic",
    "simulate",
    "simulation_html",
]
