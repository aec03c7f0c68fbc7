"""Promises of the pages: generated where they can be, what they name exists, and their links lead somewhere."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden import check_golden
from specs import ROOT

from marina.command import parser
from marina.config.errors import SpecError
from marina.config.load import load_spec
from marina.config.spec import Spec

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS])
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*?## ", MAKEFILE, re.MULTILINE))
GENERATED = ("spec", "command-line", "metrics", "errors", "rules", "records")
WHAT_A_PAGE_LOADS = r"""<(?:script|link|img|source|iframe)\b[^>]*?(?:src|href|srcset)="((?:https?:)?//[^"]+)"""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_verb() -> list[str]:
    return [verb for action in parser()._subparsers._group_actions for verb in action.choices or ()]  # type: ignore[union-attr]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(page: Path, program: str) -> list[str]:
    """The commands of a program on a page, in code blocks and between backticks."""
    text = text_of(page)
    code = re.findall(r"^\$ (.+)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
    return [
        part for line in code for part in re.split(r"\s*&&\s*|\s{2,}#|\s+>\s", line) if part.split()[:1] == [program]
    ]


@pytest.mark.parametrize("name", GENERATED)
def test_the_reference_is_written_from_the_code(name: str, generator: Any) -> None:
    assert {Path(page).stem for page in generator.pages()} == set(GENERATED)
    check_golden(generator.pages()[f"{name}.md"], ROOT / f"docs/reference/{name}.md")


@each_page
def test_what_a_page_tells_to_type_exists(page: Path) -> None:
    if page.stem in ("CHANGELOG", "command-line"):
        return  # which name what is gone, and usages
    assert {word for line in commands(page, "make") for word in line.split()[1:] if "=" not in word} <= TARGETS
    whole = parser()
    for line in commands(page, "marina"):
        words = line.split()[1:]
        # A name alone is part of a sentence.
        if len(words) > 1 and "VERB" not in words:
            assert whole.parse_args(words).run.__name__ == words[0]


def spec_blocks(page: Path) -> list[dict[str, Any]]:
    """The specs that a page shows, or the parts of one."""
    blocks = [
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    ]
    return [block for block in blocks if set(block) <= set(Spec.model_fields)]


def problems_of(file: Path) -> list[str]:
    try:
        load_spec(file)
    except SpecError as err:
        return [problem.text for problem in err.problems]
    return []


@each_page
def test_the_specs_of_a_page_have_fields_that_exist(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(spec_blocks(page)):
        model = (
            {"source": "torchvision:resnet18", "weights": "random"} if "source" not in block.get("model", {}) else {}
        )
        whole = {"name": "shown"} | block | {"model": model | block.get("model", {})}
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
        # What the block names is not here, and it may need another handler than the one that was filled in.
        assert [text for text in problems_of(file) if "unknown field" in text or "no longer" in text] == []


def anchors(page: Path) -> set[str]:
    """Where a link into a page may lead: its headings, as git hosts make anchors of them, and the ids that it sets."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*slugs, *re.findall(r'id="([^"]+)"', text)}


@each_page
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
        Path(folder.removeprefix("share/doc/marina").lstrip("/"), file.name)
        for folder, patterns in settings.items()
        if folder.startswith("share/doc/marina")
        for pattern in patterns
        for file in ROOT.glob(pattern)
    }
    pages = {page.relative_to(ROOT / "docs") for page in DOCS}
    assert pages <= shipped
    links = {
        (page.parent / target).resolve().relative_to(ROOT / "docs")
        for page in DOCS
        for target in re.findall(r"""(?:\]\(|src="|srcset=")([^)\s"#]+)""", text_of(page))
        if not target.startswith("https://")
    }
    assert len(links) > 20
    assert links - shipped == set()


def test_every_page_is_in_the_navigation_once() -> None:
    settings = tomllib.loads(text_of(ROOT / "zensical.toml"))["project"]
    listed = re.findall(r"[\w/-]+\.md", str(settings["nav"]))
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCS)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert (built.returncode, "Warning" in built.stdout + built.stderr) == (0, False), built.stdout + built.stderr
    site = list((tmp_path / "build/site").rglob("*.html"))
    assert len(site) >= len(DOCS)
    assert {url for page in site for url in re.findall(WHAT_A_PAGE_LOADS, text_of(page))} == set()


def test_every_file_of_the_code_that_contributing_names_exists() -> None:
    named = re.findall(r"`((?:\w+/)+[\w*.-]*)`", text_of(ROOT / "CONTRIBUTING.md"))
    files = [name for name in named if name.split("/")[0] != "build"]
    assert len(files) > 20
    assert [name for name in files if not list(ROOT.glob(name))] == []


@each_page
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, paragraph = text_of(page).split("\n\n")[:2]
    assert title.startswith("# ")
    assert paragraph[0].isalpha() or paragraph.startswith(("`marina ", "**"))


@each_page
def test_no_metaphor_of_the_house_is_left(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        assert re.findall(r"\b(?:annex\w*|guardian|trespass\w*|the door)\b", text_of(page), re.IGNORECASE) == []
