"""Finds the highest rate that meets the objective, and the best settings for it; the results are evidence."""

from marina.loadtest.calibrating.calibration import calibrate, evidence_text
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.tuning import settings_space, tune_settings, tuning_record, tuning_text

__all__ = [
    "CalibrateOptions",
    "calibrate",
    "evidence_text",
    "settings_space",
    "tune_settings",
    "tuning_record",
    "tuning_text",
]
