"""The pages that the door in front of TorchServe answers itself: health and metadata for KServe's V1 and the Open
Inference Protocol V2, the list of models for OpenAI's clients, and `/`, which links to everything else."""

import html
import json
from typing import Any

from marina.config.pages import base_style
from marina.config.record import Port, Record
from marina.config.render import Ports
from marina.server.pages.pages import HTML

_JSON = "application/json"
DATATYPES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
DATATYPES |= {f"{kind}{bits}": f"{kind}{bits}".upper() for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def door_pages(record: Record, *, ports: Ports, docs: bool) -> dict[str, dict[str, str]]:
    """The pages by path, each with `type` and `body`; `unready` is the body that is sent with 503 while the server is
    not ready."""
    name, version = record.name, record.version
    of_model, of_version = f"/v2/models/{name}", f"/v2/models/{name}/versions/{version}"
    metadata = _page(model_metadata(record))
    ready = _page({"ready": True}, {"ready": False, "error": f"{name} is not ready"})
    # The fields of KServe and of OpenAI, whose clients require a time of creation.
    model = {"id": name, "object": "model", "created": 0, "owned_by": "marina"}
    named = model | {"name": name, "ready": True}
    known = {"object": "list", "data": [model], "models": [name]}
    return {
        # The door replaces {HOST} by the host name of the request.
        "/": {
            "type": HTML,
            "body": start_page(record, docs=docs, ports=ports, pages=f"http://{{HOST}}:{ports.supervisor}"),
        },
        "/v1/models": _page(known),
        f"/v1/models/{name}": _page(named, named | {"ready": False, "error": f"{name} is not ready"}),
        "/v2": _page({"name": "marina", "version": "1", "extensions": ["binary_tensor_data"]}),
        "/v2/health/live": _page({"live": True}),
        "/v2/health/ready": ready,
        of_model: metadata,
        of_version: metadata,
        f"{of_model}/ready": ready,
        f"{of_version}/ready": ready,
    }


def model_metadata(record: Record) -> dict[str, Any]:
    """The model's inputs and outputs in V2's terms, each shape with a leading dimension for rows."""
    outputs = [_tensor(port) for port in record.outputs]
    if "top_indices" in [port.name for port in record.outputs] and record.labels is not None:
        shape = next(port.shape for port in record.outputs if port.name == "top_indices")
        outputs.append({"name": "top_labels", "datatype": "BYTES", "shape": [-1, *shape]})
    return {
        "name": record.name,
        "versions": [record.version],
        "platform": f"pytorch_{record.compile}",
        "inputs": _inputs(record),
        "outputs": outputs,
    }


def _inputs(record: Record) -> list[dict[str, Any]]:
    """The inputs of a request. For an encoder these are texts, which the handler turns into the model's token
    inputs."""
    if record.encoding is None:
        return [_tensor(port) for port in record.inputs]
    names = ("query", "documents") if record.encoding.task == "rerank" else ("text",)
    return [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in names]


def _tensor(port: Port) -> dict[str, Any]:
    sides = [-1 if place == port.varies else side for place, side in enumerate(port.shape)]
    datatype = DATATYPES.get(port.sent_as, port.dtype.upper())
    return {"name": port.name, "datatype": datatype, "shape": [-1, *sides]}


def _page(value: dict[str, Any], unready: dict[str, Any] | None = None) -> dict[str, str]:
    page = {"type": _JSON, "body": json.dumps(value) + "\n"}
    return page | ({"unready": json.dumps(unready) + "\n"} if unready else {})


def start_page(record: Record, *, docs: bool, ports: Ports, pages: str) -> str:
    """The HTML of `/` on either port. `pages` is the URL of the supervisor's pages for the door, and empty on their own
    port."""
    # Paths on the other port are not links: that needs the host name, which only the door knows.
    port_note = "" if pages else f"<p>On port {ports.inference}:</p>"
    try_it = (
        f'<p><a href="{pages}/docs">Try it</a></p>' if docs else "<p><code>--docs</code> adds a page to try it.</p>"
    )
    name = html.escape(record.name)
    of_protocols = (f"/v1/models/{name}:predict", f"/v2/models/{name}/infer")
    of_texts = ("/v1/completions", "/v1/chat/completions")
    paths = (f"/predictions/{name}", *(of_protocols if record.text is None else of_texts))
    rows = "".join(f"<li><code>POST {path}</code></li>" for path in paths)
    metadata = f'<a href="/v2/models/{name}">metadata</a> ' if pages else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><link rel="icon" href="data:,">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{base_style()}</style><main>'
        f"<h1>{name} {html.escape(record.version)}</h1>{try_it}{port_note}<ul>{rows}</ul>"
        f'<p>{metadata}<a href="{pages}/ready">ready</a> <a href="{pages}/metrics">metrics</a> '
        f'<a href="{pages}/package">package</a></p></main></html>\n'
    )
