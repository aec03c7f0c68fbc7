"""A trace of traffic through the autoscaler's own algorithm: how many pods, how late, and what they cost."""

from k8s.simulating.drawing import simulation_html
from k8s.simulating.outcome import Simulation
from k8s.simulating.simulate import Supposed, simulate
from k8s.simulating.traffic import Trace, read_trace

__all__ = ["Simulation", "Supposed", "Trace", "read_trace", "simulate", "simulation_html"]
