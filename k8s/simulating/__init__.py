"""Replays traffic through the autoscaler's own algorithm: how many pods there are, how late they come, their cost."""

from marina.k8s.simulating.drawing import simulation_html
from marina.k8s.simulating.simulation import Simulation, SimulationOptions, simulate
from marina.k8s.simulating.traffic import TrafficTrace, read_traffic

__all__ = ["Simulation", "SimulationOptions", "TrafficTrace", "read_traffic", "simulate", "simulation_html"]
