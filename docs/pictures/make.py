"""`make pictures`: makes the pictures of the README and of `docs/`, each in a light and a dark version.

Draws the architecture as SVG, and takes screenshots of real pages with chromium: `/docs` of a server, the verdict of a
load test, the evidence of a calibration."""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e")]

from browser import Browser, browser  # noqa: E402

MARINA = Path(sys.executable).with_name("marina")
THEMES = {
    "light": {
        "page": "#ffffff",
        "ink": "#16202c",
        "soft": "#5a6878",
        "line": "#8896a6",
        "box": "#f3f6fa",
        "ours": "#dcebff",
    },
    "dark": {
        "page": "#0d1117",
        "ink": "#e8edf3",
        "soft": "#9fadbd",
        "line": "#66758a",
        "box": "#19212b",
        "ours": "#1b3658",
    },
}
WIDTH, HEIGHT = 940, 438
DOCS_SIZE = (1072, 468)
PORT = 27600


@dataclass(frozen=True)
class Box:
    """A part of the architecture: the position and the text of its box."""

    x: int
    y: int
    wide: int
    high: int
    title: str
    lines: tuple[str, ...] = ()
    ours: bool = False


PARTS = (
    Box(20, 96, 130, 60, "Clients", ("Service, port 8080",)),
    Box(20, 236, 130, 76, "Load test", ("fixed schedule,", "verdict, knee"), ours=True),
    Box(222, 84, 190, 84, "TorchServe's Java", ("front: limits, exact counts", "queue, batches")),
    Box(472, 84, 190, 84, "Workers", ("handler: each request alone", "compiled artifact"), ours=True),
    Box(
        222,
        236,
        440,
        76,
        "Supervisor, PID 1",
        ("watches both, reports ready, drains", "8090: /ready /metrics"),
        ours=True,
    ),
    Box(748, 236, 172, 76, "Prometheus", ("rules, alerts,", "dashboard")),
    Box(748, 84, 172, 84, "Autoscaler", ("requests/s of a pod", "against 70 % of the knee")),
)
# The path, its label, the position of the label, and the label's text anchor.
ARROWS = (
    ("M150 126 L222 126", "requests", (177, 118), "middle"),
    ("M412 126 L472 126", "batches", (442, 118), "middle"),
    ("M317 236 L317 168", "socket, log lines", (325, 206), "start"),
    ("M545 168 L545 236", "heartbeat, memory", (553, 206), "start"),
    ("M748 274 L662 274", "scrapes", (718, 266), "middle"),
    ("M834 236 L834 168", "rate of each pod", (826, 206), "end"),
    ("M150 258 L222 150", "", (0, 0), "start"),
    ("M834 84 L834 20 L443 20 L443 34", "more pods, or fewer", (640, 15), "middle"),
)


def architecture(theme: dict[str, str]) -> str:
    """The parts of a running service and what passes between them, as SVG."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">',
            "<title>The parts of a service, and what passes between them</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{theme["line"]}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{theme["page"]}"/>',
            f'<rect x="204" y="34" width="484" height="302" rx="12" fill="none" stroke="{theme["line"]}" '
            'stroke-dasharray="5 5"/>',
            _text(216, 56, "One pod of the Deployment", theme["soft"], 13),
            *(_box(part, theme) for part in PARTS),
            *(_path(path, theme) for path, _, _, _ in ARROWS),
            *(_text(*at, words, theme["soft"], 11, anchor) for _, words, at, anchor in ARROWS),
            *_flow(theme),
            "</svg>\n",
        ]
    )


def _flow(theme: dict[str, str]) -> list[str]:
    stages = ("spec", "check", "package", "serve", "loadtest", "calibrate", "image", "manifests", "verify", "deploy")
    products = ("", "errors", "MAR", "ready", "verdict", "knee", "digest", "YAML", "rules", "or roll back")
    drawn = [_text(20, 372, "The stages", theme["soft"], 13)]
    drawn.append(_text(920, 372, "blue: Marina's own code", theme["soft"], 11, "end"))
    for place, (stage, product) in enumerate(zip(stages, products, strict=True)):
        x = 20 + round(place * 91.5)
        drawn.append(f'<rect x="{x}" y="384" width="76" height="36" rx="8" fill="{theme["ours"]}"/>')
        drawn.append(_text(x + 38, 400 if product else 406, stage, theme["ink"], 12, "middle", weight=600))
        drawn.append(_text(x + 38, 414, product, theme["soft"], 11, "middle"))
        if place:
            drawn.append(_path(f"M{x - 14} 402 L{x - 1} 402", theme))
    return drawn


def _box(part: Box, theme: dict[str, str]) -> str:
    middle = part.x + part.wide // 2
    top = part.y + part.high // 2 - 9 * len(part.lines) + 5
    lines = [_text(middle, top, part.title, theme["ink"], 15, "middle", weight=600)]
    lines += [
        _text(middle, top + 19 + 17 * row, line, theme["soft"], 12, "middle") for row, line in enumerate(part.lines)
    ]
    fill = theme["ours"] if part.ours else theme["box"]
    frame = f'x="{part.x}" y="{part.y}" width="{part.wide}" height="{part.high}" rx="10"'
    return "\n".join([f'<rect {frame} fill="{fill}" stroke="{theme["line"]}"/>', *lines])


def _path(path: str, theme: dict[str, str]) -> str:
    return f'<path d="{path}" fill="none" stroke="{theme["line"]}" stroke-width="1.4" marker-end="url(#head)"/>'


def _text(x: int, y: int, words: str, colour: str, size: int, anchor: str = "start", weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{words}</text>'


def photograph(address: str, theme: str, size: tuple[int, int], *, prepare: Callable[[Browser], None]) -> bytes:
    """A screenshot of a page in this theme, as WebP, after `prepare` has done with the page what is to be seen."""
    # The last of the browser's processes may still write there when the first has ended.
    place = tempfile.TemporaryDirectory(prefix="marina-pictures-", ignore_cleanup_errors=True)
    with place as folder, browser("chromium", Path(folder)) as page:
        page.open(address, size=size, scale=1.5, dark=theme == "dark")
        prepare(page)
        picture = io.BytesIO()
        Image.open(io.BytesIO(page.picture())).convert("RGB").save(picture, "webp", quality=82, method=6)
    return picture.getvalue()


def as_it_is(page: Browser) -> None:
    """Nothing is to be done."""


def send_the_sample(page: Browser) -> None:
    """On `/docs`: shows the answer to the sample."""
    page.until("document.getElementById('state').textContent === 'ready'")
    page.click("#send")
    page.until("document.getElementById('outcome').textContent.startsWith('200')")
    page.run("scrollTo(0, 0)")


def main() -> int:
    """Makes the chosen pictures; ends with the largest exit code of the verbs that it ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", nargs="?", default="config/examples/digits/spec.yaml", help="for the verdict and /docs")
    parser.add_argument("--knee", default="config/examples/language/spec.yaml", help="for the evidence")
    parser.add_argument("--only", choices=("architecture", "verdict", "docs", "evidence"), help="make only one")
    chosen = parser.parse_args()
    wanted = {chosen.only} if chosen.only else {"architecture", "verdict", "docs", "evidence"}
    if "architecture" in wanted:
        for theme, colours in THEMES.items():
            _write(f"architecture-{theme}.svg", architecture(colours).encode())
    if wanted == {"architecture"}:
        return 0
    if not shutil.which("chromium"):
        print("error: no chromium to take screenshots with\n  apt-get install chromium", file=sys.stderr)
        return 2
    ended = []
    if "verdict" in wanted:
        ended.append(_report("loadtest", chosen.spec, "verdict", (1072, 764)))
    if "evidence" in wanted:
        ended.append(_report("calibrate", chosen.knee, "evidence", (1072, 738)))
    if "docs" in wanted:
        ended.append(_docs_page(chosen.spec))
    return max(ended)


def _report(verb: str, spec: str, page: str, size: tuple[int, int]) -> int:
    """Packages a model, runs a verb and takes a screenshot of its page, unless one ends with another exit code than
    0."""
    for words in (["package", spec], [verb, spec]):
        if code := _marina(*words):
            return code
    for theme in THEMES:
        address = (ROOT / "build" / Path(spec).parent.name / f"{page}.html").as_uri()
        _write(f"{page}-{theme}.webp", photograph(address, theme, size, prepare=as_it_is))
    return 0


def _docs_page(spec: str) -> int:
    if code := _marina("package", spec):
        return code
    command = [str(MARINA), "serve", spec, "--port-base", str(PORT)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as server:
        try:
            while not _ready():
                if server.poll() is not None:
                    return server.returncode
                time.sleep(0.2)
            for theme in THEMES:
                address = f"http://127.0.0.1:{PORT}/docs"
                picture = photograph(address, theme, DOCS_SIZE, prepare=send_the_sample)
                _write(f"docs-{theme}.webp", picture)
        finally:
            server.terminate()
    return 0


def _marina(*words: str) -> int:
    print("marina", *words, file=sys.stderr)
    code = subprocess.run([MARINA, *words], cwd=ROOT, stdout=subprocess.DEVNULL).returncode
    if code:
        print(f"no picture: `marina {' '.join(words)}` ended with {code}", file=sys.stderr)
    return code


def _ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT + 10}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _write(name: str, content: bytes) -> None:
    fresh = HERE / f".{name}"
    fresh.write_bytes(content)
    fresh.rename(HERE / name)
    print(f"docs/pictures/{name}, {len(content) / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
