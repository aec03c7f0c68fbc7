"""How the pages that Marina writes look: one palette, one style sheet, charts. No network, no script."""

from config.pages.chart import Axis, Bars, Chart, Drawing, Entry, Line, linear_axis, log_axis, milliseconds
from config.pages.rendering import base_style, render

__all__ = [
    "Axis",
    "Bars",
    "Chart",
    "Drawing",
    "Entry",
    "Line",
    "base_style",
    "linear_axis",
    "log_axis",
    "milliseconds",
    "render",
]
