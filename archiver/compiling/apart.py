"""A process that compiles the programs it is told of: an order a line on its input, how long it took on its output."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from archiver.compiling.building import build
from archiver.compiling.surroundings import quiet
from archiver.instructions import targeting
from archiver.quantize import import_torchao


def main() -> None:
    # What torch prints is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        began, program = time.monotonic(), Path(order["program"])
        if order["quantised"]:
            import_torchao()
        with targeting(order["target"]):
            with quiet():
                exported = torch.export.load(program)
            program.unlink()
            build(exported, order["target"], order["threads"], Path(order["file"]))
        print(json.dumps({"seconds": time.monotonic() - began}), file=answers, flush=True)


if __name__ == "__main__":
    main()
