"""Promises of the pages: what they name exists, their links lead somewhere, and each begins with what it is for."""

import re
import tomllib
from pathlib import Path

import pytest
from specs import ROOT

from marina.command import parser

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*?## ", MAKEFILE, re.MULTILINE))


def every_verb() -> list[str]:
    return [verb for action in parser()._subparsers._group_actions for verb in action.choices or ()]  # type: ignore[union-attr]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(page: Path, program: str) -> list[str]:
    """The commands of a program on a page, in code blocks and between backticks."""
    text = text_of(page)
    code = re.findall(r"^\$ (.+)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
    return [part for line in code for part in re.split(r"\s*&&\s*|\s{2,}#", line) if part.split()[:1] == [program]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_a_page_names_is_in_the_makefile(page: Path) -> None:
    named = {word for line in commands(page, "make") for word in line.split()[1:] if "=" not in word}
    assert named <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_marina_command_of_a_page_parses(page: Path) -> None:
    whole = parser()
    for line in commands(page, "marina"):
        words = line.split()[1:]
        if "VERB" in words:
            continue
        options = whole.parse_args(words)
        assert options.run.__name__ == words[0]


def test_every_verb_is_in_the_readme() -> None:
    named = {line.split()[1] for line in commands(ROOT / "README.md", "marina") if len(line.split()) > 1}
    assert set(every_verb()) - named == {"demo"}  # which is shown as `make demo`


def anchors(page: Path) -> set[str]:
    """Where a link into a page may lead: its headings, as GitHub makes anchors of them, and the ids that it sets."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*slugs, *re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def test_the_wheel_has_what_its_pages_link_to() -> None:
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["setuptools"]["data-files"]
    shipped = {
        Path(folder, file.name)
        for folder, patterns in settings.items()
        for pattern in patterns
        for file in ROOT.glob(pattern)
    }
    links = {
        (page.name, target)
        for page in (ROOT / "docs").glob("*.md")
        for target in re.findall(r"""(?:\]\(|src="|srcset=")([^)\s"#]+)""", text_of(page))
        if not target.startswith("https://")
    }
    assert len(links) > 20
    assert {link for link in links if Path("share/doc/marina", link[1]) not in shipped} == set()


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 20), ("docs/00-flow.md", 10)])
def test_every_file_of_the_code_that_a_page_names_exists(page: str, least: int) -> None:
    named = re.findall(r"`((?:\w+/)+[\w*.-]*)`", text_of(ROOT / page))
    files = [
        name for name in named if name.split("/")[0] not in {"build", "manifests", "new", "old", "prometheus", "tune"}
    ]
    assert len(files) > least
    assert [name for name in files if not list(ROOT.glob(name))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, paragraph = text_of(page).split("\n\n")[:2]
    assert title.startswith("# ")
    assert paragraph[0].isalpha() or paragraph.startswith(("`marina ", "**"))
