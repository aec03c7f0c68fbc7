"""The page to try the model, in a real browser."""

import html
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, browser
from conftest import Start
from running import Running
from specs import ROOT
from tools import needs
from waiting import DIGIT

pytestmark = pytest.mark.e2e

SEVEN = ROOT / "config/examples/digits/samples/7.png"
# What overlaps, and what sticks out to the right.
LAYOUT = """(() => {
  const shown = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    if (walker.currentNode.data.trim() && !walker.currentNode.parentElement.closest("pre, .scroll"))
      for (const box of range.getClientRects()) if (box.width && box.height) shown.push(box);
  }
  let overlaps = 0;
  shown.forEach((a, i) => shown.slice(i + 1).forEach((b) => {
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) overlaps++;
  }));
  return { overlaps, texts: shown.length, width: document.documentElement.scrollWidth };
})()"""


# The sample's picture is there: a tiny one is shown larger, which moves what is below it.
SHOWN = "document.getElementById('picture')?.classList.contains('tiny')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = needs("chromium", "chromium-browser", "google-chrome", package="chromium")
    with browser(chromium, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def docs(page: Browser, digits_server: Running) -> Browser:
    page.said.clear()
    page.open(f"{digits_server.url}/docs")
    page.until(SHOWN)
    return page


def ask(
    server: Running, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, named)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, response.headers, answer


def test_the_sample_is_there_and_its_answer_is_shown_with_its_time(docs: Browser) -> None:
    docs.until("document.getElementById('state').textContent === 'ready'")
    assert docs.run("document.getElementById('file').textContent") == f"sample.png, {len(DIGIT)} bytes"
    docs.click("#send")
    docs.until("/^200 in [0-9.]+ ms$/.test(document.getElementById('outcome').textContent)")
    assert docs.run("document.querySelector('#classes .label').textContent") == "3"
    assert docs.run("document.querySelectorAll('#classes li').length") == 3
    assert json.loads(docs.run("document.getElementById('answer').textContent"))["top_labels"][0] == "3"
    assert docs.complaints() == []


def test_the_start_page_leads_there(page: Browser, digits_server: Running) -> None:
    page.open(f"{digits_server.url}/")
    page.until("document.querySelector('a')?.textContent")
    text = page.run("document.body.textContent")
    assert f"On port {digits_server.ports.supervisor}: /ready /metrics /package" in text
    page.click("a")
    page.until("document.getElementById('file')?.textContent")


def test_a_dropped_image_is_sent_at_once(docs: Browser) -> None:
    docs.drop(SEVEN, "#drop")
    docs.until("document.querySelector('#classes .label')?.textContent === '7'")
    assert docs.run("document.getElementById('file').textContent").startswith("7.png, ")
    docs.click("#reset")
    docs.until("document.getElementById('file').textContent.startsWith('sample.png')")


def test_a_refusal_is_shown_as_what_it_is(docs: Browser, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"image": "not base64"}', encoding="utf-8")
    docs.drop(tmp_path / "broken.json", "#drop")
    docs.until("document.getElementById('outcome').textContent.startsWith('400')")
    assert "not valid base64" in docs.run("document.getElementById('answer').textContent")
    assert docs.run("document.querySelectorAll('#classes li').length") == 0
    # What was dropped can be mended there.
    docs.run(f"document.getElementById('text').value = JSON.stringify({{image: {np.zeros(64).tolist()}}})")
    docs.click("#send")
    docs.until("document.getElementById('outcome').textContent.startsWith('200')")


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_overlaps_or_sticks_out(page: Browser, digits_server: Running, width: int, dark: bool) -> None:
    page.open(f"{digits_server.url}/docs", size=(width, 900), dark=dark)
    page.until(SHOWN)
    page.click("#send")
    page.until("document.querySelectorAll('#classes li').length")
    layout = page.run(LAYOUT)
    assert layout["texts"] > 30
    assert layout["overlaps"] == 0
    assert layout["width"] == width
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 21, 28)" if dark else "rgb(246, 247, 249)")


def test_it_asks_nobody_but_its_own_server(docs: Browser, digits_server: Running) -> None:
    docs.click("#send")
    docs.until("document.getElementById('outcome').textContent.startsWith('200')")
    asked = [url.removeprefix("blob:") for url in docs.asked()]
    assert len(asked) >= 4
    assert [url for url in asked if not url.startswith(f"{digits_server.url}/")] == []


def test_the_lines_to_copy_work_as_they_are(docs: Browser, tmp_path: Path) -> None:
    curl, python = (
        html.unescape(docs.run(f"document.querySelector('#{name} code').textContent")) for name in ("curl", "python")
    )
    done = subprocess.run(["bash", "-euc", curl], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["top_labels"][0] == "3"
    command = [sys.executable, "-c", python]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert "'top_labels': ['3'," in done.stdout


@pytest.mark.parametrize("snippet", ["requests", "triton", "javascript"])
def test_what_is_to_be_copied_for_other_clients_works_as_it_is(docs: Browser, tmp_path: Path, snippet: str) -> None:
    program = docs.run(f"document.querySelector('#{snippet} code').textContent")
    (tmp_path / "sample.png").write_bytes(DIGIT)
    if snippet == "javascript":
        needs("node", package="nodejs")
    command = ["node", "--input-type=module", "-e"] if snippet == "javascript" else [sys.executable, "-c"]
    done = subprocess.run([*command, program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert re.search(r"top_labels\W+b?\W?3\W", done.stdout)


def test_the_page_allows_no_script_but_its_own(digits_server: Running) -> None:
    status, headers, body = ask(digits_server, "GET", "/docs")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(rb"(src|href)=[\"']?(https?:)?//", body)


def test_the_sample_is_never_shown_as_a_page(digits_server: Running) -> None:
    status, headers, body = ask(digits_server, "GET", "/docs/sample")
    assert (status, body) == (200, DIGIT)
    assert headers["Content-Type"] == "image/png"
    assert headers["Content-Security-Policy"] == "sandbox"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_without_docs_there_is_no_such_page(start_tiny: Start) -> None:
    server = start_tiny()
    for path in ("/docs", "/docs/sample", "/openapi.json"):
        status, _, body = ask(server, "GET", path)
        assert (status, json.loads(body)["error"]) == (404, "no such page")
