"""A child process that compiles programs: reads one order per line on stdin, and answers on stdout with the seconds
that each took."""

import json
import os
import sys
import time
from pathlib import Path

import torch

from marina.archiver.compiling.artifacts import compile_artifact
from marina.archiver.compiling.environment import quiet
from marina.archiver.cpu_target import targeting
from marina.archiver.quantize import import_torchao
from marina.handlers.torchvision_import import install


def main() -> None:
    install()
    # Whatever torch prints to stdout goes to stderr, so that it is not taken for an answer.
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
            compile_artifact(exported, order["target"], order["threads"], Path(order["file"]))
        print(json.dumps({"seconds": time.monotonic() - began}), file=answers, flush=True)


if __name__ == "__main__":
    main()
