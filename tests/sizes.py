"""Looks at the size of every function, module and folder: long ones are where a reader gives up. Of code that is not
Python, only the lines of a file count.

python tests/sizes.py     exits with 1 above the limits, and names what is worth a look below them
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

MODULE_LOOK, MODULE_LIMIT = 250, 350
FUNCTION_LOOK, FUNCTION_LIMIT = 40, 60
FOLDER_LIMIT = 20
LANGUAGES = ("*.py", "*.java", "*.cpp", "*.h", "*.js", "*.css", "*.sh")


def sizes(file: Path) -> Iterator[tuple[str, int, int, int]]:
    """What has a size: its place, its lines, from where it is worth a look, and its limit."""
    text = file.read_text(encoding="utf-8")
    yield str(file), text.count("\n"), MODULE_LOOK, MODULE_LIMIT
    if file.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno
            yield f"{file}:{node.lineno}: {node.name}", lines, FUNCTION_LOOK, FUNCTION_LIMIT


def complaints(files: Sequence[Path]) -> Iterator[str]:
    """What is above a limit, each in a line."""
    for file in files:
        for place, lines, _, limit in sizes(file):
            if lines > limit:
                yield f"{place}: {lines} lines, the limit is {limit}"
    # Examples are what a user would write, each in a folder of its own.
    folders = Counter(file.parent for file in files if "examples" not in file.parts)
    for folder, modules in sorted(folders.items()):
        if modules > FOLDER_LIMIT:
            yield f"{folder}: {modules} modules, the limit is {FOLDER_LIMIT}"


def worth_a_look(files: Sequence[Path]) -> Iterator[str]:
    """What is long but within its limit, each in a line."""
    for file in files:
        for place, lines, look, limit in sizes(file):
            if look < lines <= limit:
                yield f"{place}: {lines} lines, worth a look from {look}"


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", *LANGUAGES], capture_output=True, text=True, check=True)
    files = [Path(name) for name in tracked.stdout.splitlines() if Path(name).exists()]
    above = list(complaints(files))
    print(*worth_a_look(files), *above, sep="\n")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
