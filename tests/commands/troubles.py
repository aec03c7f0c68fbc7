"""The rows of docs/10-troubleshooting.md, to compare with what is really seen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specs import ROOT

_ROW = re.compile(r'^\| <a id="([a-z0-9-]+)"></a>(.+?) \| (.+?) \| (.+?) \|$', re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One symptom."""

    seen: str
    cause: str
    cure: str

    @property
    def quoted(self) -> list[str]:
        """What is quoted of messages and answers."""
        return re.findall(r"`([^`]+)`", self.seen)


ROWS = {
    anchor: Row(*cells) for anchor, *cells in _ROW.findall((ROOT / "docs/10-troubleshooting.md").read_text("utf-8"))
}


def shows(anchor: str, output: str) -> None:
    """Fails unless what the page quotes for a symptom is in what was seen; `…` is anything."""
    # A symptom without words has nothing to compare: its test asserts it by itself, and says so by an empty output.
    assert bool(ROWS[anchor].quoted) == bool(output), f"{anchor}: quotes {ROWS[anchor].quoted}, seen:\n{output}"
    plain = output.replace("`", "")
    for quote in ROWS[anchor].quoted:
        pattern = ".*?".join(map(re.escape, quote.split("…")))
        assert re.search(pattern, plain, re.DOTALL), f"{anchor}: `{quote}` is not in:\n{output}"
