"""Shows a verdict to people: pages, charts, texts, and JUnit for CI."""

from marina.loadtest.reporting.charts import percentile_axis
from marina.loadtest.reporting.junit import JUnitCase, cost_cases, suite_xml, verdict_xml
from marina.loadtest.reporting.report import cost_facts, measured_text, verdict_html, verdict_markdown
from marina.loadtest.reporting.text import (
    LiveLine,
    arrivals_text,
    check_text,
    figures_text,
    ms,
    pod_share_text,
    reason_items,
    stream_lines,
    texts_by_id,
    verdict_lines,
)

__all__ = [
    "JUnitCase",
    "LiveLine",
    "arrivals_text",
    "check_text",
    "cost_cases",
    "cost_facts",
    "figures_text",
    "measured_text",
    "ms",
    "percentile_axis",
    "pod_share_text",
    "reason_items",
    "stream_lines",
    "suite_xml",
    "texts_by_id",
    "verdict_html",
    "verdict_lines",
    "verdict_markdown",
    "verdict_xml",
]
