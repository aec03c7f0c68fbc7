"""Judges what clients saw of a drill: a service that was broken on purpose, under load."""

from marina.loadtest.drilling.judgement import LoadedDrill, judge_drill
from marina.loadtest.drilling.options import DrillOptions
from marina.loadtest.drilling.record import Broken, DrillRecord, PodsAt
from marina.loadtest.drilling.report import drill_text, write_drill

__all__ = [
    "Broken",
    "DrillOptions",
    "DrillRecord",
    "LoadedDrill",
    "PodsAt",
    "drill_text",
    "judge_drill",
    "write_drill",
]
