"""Shows a verdict to people: pages, charts, texts, and JUnit for CI."""

from loadtest.reporting.charts import percentile_axis
from loadtest.reporting.junit import JUnitCase, cost_cases, suite_xml, verdict_xml
from loadtest.reporting.live import LiveLine
from loadtest.reporting.report import cost_facts, measured_text, verdict_html
from loadtest.reporting.text import (
    arrivals_text,
    check_text,
    figures_text,
    ms,
    pod_share_text,
    stream_lines,
    texts_by_id,
    verdict_lines,
)
