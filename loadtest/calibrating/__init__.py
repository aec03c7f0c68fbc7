"""Finds the highest rate that meets the objective, and the best settings for it; the results are evidence."""

from loadtest.calibrating.calibration import calibrate, evidence_text
from loadtest.calibrating.evidence import Evidence
from loadtest.calibrating.evidence_report import evidence_html
from loadtest.calibrating.options import CalibrateOptions
from loadtest.calibrating.tuning import settings_space, tune_settings, tuning_record, tuning_text

__all__ = [
    "CalibrateOptions",
    "Evidence",
    "calibrate",
    "evidence_html",
    "evidence_text",
    "settings_space",
    "tune_settings",
    "tuning_record",
    "tuning_text",
]
