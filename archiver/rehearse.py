"""Loads a staged package as a TorchServe worker would; the handler warms every batch size and answers the sample.

Run as a script, with nothing but the package and site-packages to import from: what a file in the package needs and
does not bring is found here, not in the pod.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    # TorchServe's own context, so that this is the interface the handler will meet.
    from ts.context import Context

    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    gpu = 0 if record["device"] == "cuda" else None
    import_module("marina_entry").Service().initialize(
        Context(record["name"], str(folder), {}, record["batch_sizes"][-1], gpu, "0.12.0")
    )
    if record["cache"] and record["device"] == "cuda":
        keep_artifacts(folder / record["cache"])


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
