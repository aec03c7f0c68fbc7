"""Golden files: generated text as it was last accepted. `make golden` writes them again, for review as a diff."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check_golden(text: str, file: Path) -> None:
    """Fails when a text differs from its file, unless MARINA_GOLDEN=write asks to accept it."""
    if os.environ.get("MARINA_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, f"{file} differs: make golden, and look at the diff"
