"""The highest rate that meets the objective, as evidence."""

from loadtest.calibrating.calibration import calibrate, evidence_text
from loadtest.calibrating.evidence import Evidence
from loadtest.calibrating.evidence_report import evidence_html
from loadtest.calibrating.retuning import retune, space_of, tuning_record, tuning_text
from loadtest.calibrating.search import Search

__all__ = [
    "Evidence",
    "Search",
    "calibrate",
    "evidence_html",
    "evidence_text",
    "retune",
    "space_of",
    "tuning_record",
    "tuning_text",
]
