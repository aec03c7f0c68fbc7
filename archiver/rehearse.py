"""Loads a staged package as a TorchServe worker would and lets it answer its own sample.

Run as a script, with nothing but the package and site-packages to import from: what a file in the package needs and
does not bring is found here, not in the pod. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    # TorchServe's own context, so that this is the interface the handler will meet.
    from ts.context import Context, RequestProcessor

    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    gpu = 0 if record["device"] == "cuda" else None
    context = Context(record["name"], str(folder), {}, record["batch_sizes"][-1], gpu, "0.12.0")
    service = import_module("marina_entry").Service()
    begin = time.monotonic()
    service.initialize(context)
    if record["cache"] and record["device"] == "cuda":
        keep_artifacts(folder / record["cache"])
    loaded = time.monotonic() - begin
    context.request_ids = {0: "rehearsal"}
    context.request_processor = [RequestProcessor({"content-type": record["sample"]["content_type"]})]
    body = service.handle([{"body": (folder / record["sample"]["file"]).read_bytes()}], context)[0]
    status = context.get_response_status(0)[0]
    text = bytes(body).decode("utf-8", "replace")
    print("\n" + json.dumps({"status": status, "body": text, "load_s": round(loaded, 2)}))


def keep_artifacts(cache: Path) -> None:
    """What torch has compiled so far, for a worker to start from. On the CPU frozen graphs are in no such cache, and
    the kernels that stay in the folder are what took the time."""
    import torch

    from handlers.program import ARTIFACTS

    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        (cache / ARTIFACTS).write_bytes(saved[0])


if __name__ == "__main__":
    main()
