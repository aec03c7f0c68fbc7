"""Looks at the size of every module and function: long ones are where a reader gives up.

python tests/sizes.py     exits with 1 above the limits, and names what is worth a look below them
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LOOK, MODULE_LIMIT = 250, 350
FUNCTION_LOOK, FUNCTION_LIMIT = 40, 60


def sizes(file: Path) -> Iterator[tuple[str, int, int, int]]:
    """What has a size: its place, its lines, from where it is worth a look, and its limit."""
    text = file.read_text(encoding="utf-8")
    yield str(file), text.count("\n"), MODULE_LOOK, MODULE_LIMIT
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno
            yield f"{file}:{node.lineno}: {node.name}", lines, FUNCTION_LOOK, FUNCTION_LIMIT


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    over = 0
    for name in tracked.stdout.splitlines():
        for place, lines, look, limit in sizes(Path(name)):
            if lines > limit:
                over += 1
                print(f"{place}: {lines} lines, the limit is {limit}")
            elif lines > look:
                print(f"{place}: {lines} lines, worth a look from {look}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
