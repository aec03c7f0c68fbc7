"""Finds the highest rate that meets the objective, and the best settings for it; the results are evidence."""

from marina.loadtest.calibrating.calibration import calibrate, evidence_text
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.tuning import tune_settings

__all__ = ["CalibrateOptions", "calibrate", "evidence_text", "tune_settings"]
