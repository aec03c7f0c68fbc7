"""A verdict as people read it: pages, charts, words, JUnit."""

from loadtest.reporting.figures import percentile_axis
from loadtest.reporting.junit import Case, cost_cases, suite_xml, verdict_xml
from loadtest.reporting.live import LiveLine
from loadtest.reporting.report import cost_facts, value_text, verdict_html
from loadtest.reporting.words import (
    arrivals_text,
    check_text,
    figures_text,
    ms,
    pieces_lines,
    share_text,
    texts_by_id,
    verdict_lines,
)

__all__ = [
    "Case",
    "LiveLine",
    "arrivals_text",
    "check_text",
    "cost_cases",
    "cost_facts",
    "figures_text",
    "ms",
    "percentile_axis",
    "pieces_lines",
    "share_text",
    "suite_xml",
    "texts_by_id",
    "value_text",
    "verdict_html",
    "verdict_lines",
    "verdict_xml",
]
