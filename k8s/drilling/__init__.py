"""Breaks a deployed service on purpose, in one of six ways, and follows how many of its pods serve meanwhile."""

from marina.k8s.drilling.breakage import Breakage, PodReading
from marina.k8s.drilling.cordon import cordoned, end_leftover_cordons
from marina.k8s.drilling.plan import KINDS, DrillPlan, check_drill_permissions, plan_drill

__all__ = [
    "KINDS",
    "Breakage",
    "DrillPlan",
    "PodReading",
    "check_drill_permissions",
    "cordoned",
    "end_leftover_cordons",
    "plan_drill",
]
