"""Writes the tables of `docs/07-verify.md` from the texts of the rules."""

from collections.abc import Iterator

from marina.k8s.verify.check import TOPICS, all_rules

MARK = "<!-- `make golden` writes the rest of this page from the texts of the rules. -->\n"


def render_page(page: str) -> str:
    """The page with its tables rewritten; the text above the mark stays."""
    head, mark, _ = page.partition(MARK)
    return head + mark + f"\n{len(all_rules())} rules:\n" + "".join(_tables())


def _tables() -> Iterator[str]:
    for topic in TOPICS:
        yield f"\n## {topic.name}\n\n| rule | level | what | why | what to do |\n| --- | --- | --- | --- | --- |\n"
        for rule in topic.rules:
            cells = (f"`{rule.id}`", rule.level, rule.what, rule.why, rule.fix)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
