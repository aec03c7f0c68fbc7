"""`/docs`, the page for trying the model. It is on the port of inference, so its script sends requests there itself."""

import base64
import hashlib
import json
from functools import partial
from pathlib import Path

from marina.config.pages import base_style, render_template
from marina.config.record import Record
from marina.config.render import Ports
from marina.server.pages.schemas import JSON, OPENAI_PATHS
from marina.server.pages.snippets import programs

_ASSETS = Path(__file__).parent.parent / "assets"
# Larger samples can be sent, but are not shown for editing.
_EDITABLE_BYTES = 20_000


def docs_page(record: Record, sample: bytes, *, sha256: str, ports: Ports) -> tuple[str, dict[str, str]]:
    """The page's HTML and headers, which allow no script and no style but its own."""
    style, script = base_style() + _asset("docs.css"), _asset("docs.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    kind = record.sample.content_type
    server = f"http://localhost:{ports.inference}"
    text = render_template(
        _ASSETS / "docs.html",
        record=record,
        takes=_takes(record).split("`"),
        programs=programs(record, server=server),
        forms={"Takes": record.takes, "Gives": record.gives},
        indented=partial(json.dumps, indent=2),
        facts={
            "name": record.url_name,
            "server": server,
            "sample": Path(record.sample.file).name,
            "type": kind,
            "text": sample.decode("utf-8", "replace") if kind == JSON and len(sample) <= _EDITABLE_BYTES else None,
            "limit": record.max_request_bytes,
        },
        sha256=sha256,
        style=style,
        script=script,
    )
    return text, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


def _takes(record: Record) -> str:
    if record.handler == "image":
        return "JPEG, PNG, WebP, GIF, TIFF or BMP bytes, JSON with `image`, or .npy"
    if record.text is not None:
        paths = ", ".join(f"`{path}`" for path in OPENAI_PATHS.values())
        return f"OpenAI's JSON for a chat or a completion; clients send it to {paths}"
    if record.handler == "tensor":
        return "JSON with the inputs by name" + (", the bare array, or .npy" if len(record.inputs) == 1 else "")
    if record.encoding is not None:
        named = {"answer": "`question` and `context`", "rerank": "`query` and `documents`"}
        return named.get(record.encoding.task, "JSON with `text`, a list of texts, or text")
    return f"what {record.handler} takes, {'as declared below' if record.takes else 'such as the sample'}"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
