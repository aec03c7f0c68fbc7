"""The reports in a real browser. Without one the tests say what to install."""

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, planned
from test_loadtest_compare import comparison
from test_loadtest_report import FAILED, INVALID, PASSED, REPEATED, evidence
from tools import needs

from marina.k8s.simulating import SimulationOptions, simulate, simulation_html
from marina.loadtest.calibrating.evidence_report import evidence_html
from marina.loadtest.comparing.report import comparison_html
from marina.loadtest.reporting.report import verdict_html

pytestmark = pytest.mark.e2e

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# Runs inside the page: which texts overlap, and what sticks out to the right.
PROBE = """
<script>
addEventListener("load", () => {
  const shown = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects())
      if (box.width && box.height && walker.currentNode.data.trim())
        shown.push([walker.currentNode.data.trim(), box]);
  }
  const overlaps = [];
  for (let i = 0; i < shown.length; i++)
    for (let j = i + 1; j < shown.length; j++) {
      const [one, a] = shown[i], [other, b] = shown[j];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) overlaps.push([one, other]);
    }
  const small = [...document.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height);
  document.body.insertAdjacentHTML("beforeend", "<pre id=probe>" + JSON.stringify({
    overlaps, texts: shown.length, width: innerWidth, content: document.documentElement.scrollWidth,
    smallest: Math.min(...small), charts: Math.max(...[...document.querySelectorAll("svg")].map(
      chart => chart.getBoundingClientRect().right)), page: getComputedStyle(document.body).backgroundColor,
  }) + "</pre>");
});
</script>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    return needs("chromium", "chromium-browser", "google-chrome", package="chromium")


def browse(chromium: str, file: Path, *words: str) -> str:
    profile = file.with_suffix(".profile")
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *words, file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def probe(chromium: str, html: str, folder: Path, width: int, scheme: str) -> dict[str, Any]:
    """What the page says of itself at a width (headless Chromium is never narrower than 500) and in a scheme."""
    file = folder / f"{scheme}-{width}.html"
    # A frame is as narrow as it is told to be.
    inner = html.replace("</body>", PROBE + "</body>").replace("&", "&amp;").replace('"', "&quot;")
    file.write_text(
        f'<iframe id=f width={width} height=4000 srcdoc="{inner}"></iframe><script>addEventListener("load", () => '
        'document.body.append(document.getElementById("f").contentDocument.getElementById("probe").textContent))'
        "</script>",
        encoding="utf-8",
    )
    settings = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    dom = browse(chromium, file, settings, "--dump-dom", "--virtual-time-budget=5000", "--window-size=1400,1000")
    said = dom.rpartition("</script>")[2].rpartition("</body>")[0]
    layout: dict[str, Any] = json.loads(said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return layout


PAGES = [
    pytest.param(verdict_html(PASSED), id="pass"),
    pytest.param(verdict_html(FAILED), id="fail"),
    pytest.param(verdict_html(INVALID), id="invalid"),
    pytest.param(verdict_html(REPEATED), id="repeated"),
    pytest.param(evidence_html(evidence()), id="evidence"),
    pytest.param(comparison_html(comparison()), id="compare"),
    pytest.param(simulation_html(simulate(planned(evidence=EVIDENCE), SimulationOptions(2))), id="simulate"),
]


@pytest.mark.parametrize("html", PAGES)
@pytest.mark.parametrize("width", [360, 1200])
def test_no_text_overlaps_and_nothing_sticks_out(chromium: str, html: str, width: int, tmp_path: Path) -> None:
    layout = probe(chromium, html, tmp_path, width, "light")
    assert layout["texts"] > 50
    assert layout["overlaps"] == []
    assert layout["width"] == width
    assert layout["content"] <= width
    # A chart that has to be scrolled sideways does not make its page wider.
    assert layout["charts"] <= width
    assert layout["smallest"] >= 8


def test_light_and_dark_differ(chromium: str, tmp_path: Path) -> None:
    pages = {
        scheme: probe(chromium, verdict_html(PASSED), tmp_path, 1200, scheme)["page"] for scheme in ("light", "dark")
    }
    assert pages == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 21, 28)"}


def test_the_browser_paints_it(chromium: str, tmp_path: Path) -> None:
    file = tmp_path / "verdict.html"
    file.write_text(verdict_html(FAILED), encoding="utf-8")
    picture = tmp_path / "verdict.png"
    browse(chromium, file, "--window-size=800,1400", f"--screenshot={picture}")
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (800, 1400)
    assert len(data) > 40_000


def test_the_probe_finds_overlaps(chromium: str, tmp_path: Path) -> None:
    broken = verdict_html(PASSED).replace("<footer>", '<footer style="margin-top: -60px">')
    assert probe(chromium, broken, tmp_path, 360, "light")["overlaps"]
