"""The look of every page that Marina writes: palette, style sheet, charts. No page needs a network or a script."""

from marina.config.pages.chart import Axis, Bars, Chart, Drawing, Line, linear_axis, log_axis, milliseconds
from marina.config.pages.rendering import base_style, render_template

__all__ = [
    "Axis",
    "Bars",
    "Chart",
    "Drawing",
    "Line",
    "base_style",
    "linear_axis",
    "log_axis",
    "milliseconds",
    "render_template",
]
