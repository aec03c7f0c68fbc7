"""Reads the rows of docs/how-to/troubleshooting.md, to compare them with real output."""

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
        """The quoted parts of messages and answers."""
        return re.findall(r"`([^`]+)`", self.seen)


ROWS = {
    anchor: Row(*cells) for anchor, *cells in _ROW.findall((ROOT / "docs/how-to/troubleshooting.md").read_text("utf-8"))
}


def shows(anchor: str, output: str) -> None:
    """Fails unless the output contains what the page quotes for a symptom; `…` stands for any text."""
    # Nothing is quoted for some symptoms; their tests check them otherwise, and pass an empty output.
    assert bool(ROWS[anchor].quoted) == bool(output), f"{anchor}: quotes {ROWS[anchor].quoted}, seen:\n{output}"
    plain = output.replace("`", "")
    for quote in ROWS[anchor].quoted:
        pattern = ".*?".join(map(re.escape, quote.split("…")))
        assert re.search(pattern, plain, re.DOTALL), f"{anchor}: `{quote}` is not in:\n{output}"
