"""The pages that the door in front of TorchServe answers itself: health and metadata for KServe's V1 and the Open
Inference Protocol V2, the list of models for OpenAI's clients, `/`, which links to everything else, and `/docs`."""

import html
import json
from typing import Any

from marina.config.pages import base_style
from marina.config.record import Record
from marina.config.render import Ports
from marina.server.pages.docs_page import docs_page
from marina.server.pages.openapi import openapi
from marina.server.pages.schemas import JSON, model_metadata

# What a browser must not take for a page of this site, or keep for the next server at this address.
_UNTRUSTED = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Cache-Control": "no-store"}

Page = dict[str, Any]


def door_pages(record: Record, sample: bytes, *, ports: Ports, sha256: str, docs: bool) -> dict[str, Page]:
    """The pages by path, each with `headers` and `body`, or instead of that `file`, whose path in the package it is;
    `unready` is the body that is sent with 503 while the server is not ready. `docs` adds the page to try the model."""
    name, version = record.url_name, record.version
    of_model, of_version = f"/v2/models/{name}", f"/v2/models/{name}/versions/{version}"
    metadata = _json(model_metadata(record))
    ready = _json({"ready": True}, {"ready": False, "error": f"{name} is not ready"})
    # The fields of KServe and of OpenAI, whose clients require a time of creation.
    model = {"id": name, "object": "model", "created": 0, "owned_by": "marina"}
    named = model | {"name": name, "ready": True}
    pages = {
        "/": _html(_start_page(record, docs=docs, ports=ports)),
        "/v1/models": _json({"object": "list", "data": [model], "models": [name]}),
        f"/v1/models/{name}": _json(named, named | {"ready": False, "error": f"{name} is not ready"}),
        "/v2": _json({"name": "marina", "version": "1", "extensions": ["binary_tensor_data"]}),
        "/v2/health/live": _json({"live": True}),
        "/v2/health/ready": ready,
        of_model: metadata,
        of_version: metadata,
        f"{of_model}/ready": ready,
        f"{of_version}/ready": ready,
    }
    if docs:
        text, headers = docs_page(record, sample, sha256=sha256, ports=ports)
        pages["/docs"] = _html(text, headers)
        pages["/docs/sample"] = {
            "headers": _UNTRUSTED | {"Content-Type": record.sample.content_type},
            "file": record.sample.file,
        }
        pages["/openapi.json"] = _json(openapi(record))
    return pages


def _json(value: dict[str, Any], unready: dict[str, Any] | None = None) -> Page:
    page = {"headers": {"Content-Type": JSON}, "body": json.dumps(value) + "\n"}
    return page | ({"unready": json.dumps(unready) + "\n"} if unready else {})


def _html(text: str, headers: dict[str, str] | None = None) -> Page:
    return {"headers": {"Content-Type": "text/html; charset=utf-8", **(headers or {})}, "body": text}


def _start_page(record: Record, *, docs: bool, ports: Ports) -> str:
    name = html.escape(record.url_name)
    try_it = '<a href="/docs">Try it</a>' if docs else "<code>--docs</code> adds a page to try it."
    of_protocols = (f"/v1/models/{name}:predict", f"/v2/models/{name}/infer")
    of_texts = ("/v1/completions", "/v1/chat/completions")
    paths = (f"/predictions/{name}", *(of_protocols if record.text is None else of_texts))
    rows = "".join(f"<li><code>POST {path}</code></li>" for path in paths)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><link rel="icon" href="data:,">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{base_style()}</style><main>'
        f"<h1>{name} {html.escape(record.version)}</h1><p>{try_it}</p><ul>{rows}</ul>"
        f'<p><a href="/v2/models/{name}">metadata</a> <a href="/v2/health/ready">ready</a></p>'
        f"<p>On port {ports.supervisor}: <code>/ready</code> <code>/metrics</code> <code>/package</code></p>"
        "</main></html>\n"
    )
