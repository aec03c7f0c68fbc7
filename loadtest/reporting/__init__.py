"""A verdict as people read it: pages, charts, words, JUnit."""

from loadtest.reporting.chart import Axis, Chart, Line, linear_axis, log_axis, milliseconds
from loadtest.reporting.figures import drawing, percentile_axis
from loadtest.reporting.junit import Case, cost_cases, suite_xml, verdict_xml
from loadtest.reporting.live import LiveLine
from loadtest.reporting.report import cost_facts, facts, ms, reason_list, verdict_html
from loadtest.reporting.theme import page
from loadtest.reporting.words import arrivals_text, check_text, figures_text, verdict_lines

__all__ = [
    "Axis",
    "Case",
    "Chart",
    "Line",
    "LiveLine",
    "arrivals_text",
    "check_text",
    "cost_cases",
    "cost_facts",
    "drawing",
    "facts",
    "figures_text",
    "linear_axis",
    "log_axis",
    "milliseconds",
    "ms",
    "page",
    "percentile_axis",
    "reason_list",
    "suite_xml",
    "verdict_html",
    "verdict_lines",
    "verdict_xml",
]
