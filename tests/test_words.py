"""Words that say too little, or that a stranger has to guess at, stay out of the product's code and pages."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest
from specs import ROOT

# These say nothing of what they hold, in tests as little as in the product.
EMPTY_NAMES = ("one", "found")
PACKAGES = ("archiver", "config", "docker", "handlers", "k8s", "loadtest", "marina", "server")
# Names that do not say what they hold.
NAMES = (
    "Asked",
    "FLATTERS",
    "SAID_WHY",
    "Said",
    "Silent",
    "arrive",
    "bring",
    "each",
    "everything_ends",
    "hurried",
    "lacks",
    "mine",
    "said",
    "stuff",
    "surroundings",
    "taken_out",
    "thing",
    "told",
    "unsaid",
    "wish",
    "wishes",
)
PHRASES = (
    "a handler of one's own",
    "but not without the arrivals",
    "are told",
    "everything that lacks",
    "held against",
    "in the making",
    "is no JSON",
    "is to be said",
    "is told",
    "is what is there",
    "it is mended",
    "it is said",
    "lets be",
    "none of ours",
    "such a one",
    "takes note of",
    "the kit",
    "without a sign",
)


def bindings(code: str) -> Iterator[tuple[str, int]]:
    """Every name that code gives to something, with its line; a class's fields are read beside their owner's name."""
    tree = ast.parse(code)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(part.target) for node in classes for part in node.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id, node.lineno
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, 0


def named(code: str, name: str) -> list[int]:
    """The lines where code gives this name to something."""
    return [line for binding, line in bindings(code) if binding == name]


@functools.cache
def places_of_names(folder: str) -> dict[str, list[str]]:
    """Where the code in a folder gives each of its names to something."""
    places: dict[str, list[str]] = {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        for name, line in bindings(file.read_text(encoding="utf-8")):
            places.setdefault(name, []).append(f"{file.relative_to(ROOT)}:{line}")
    return places


@pytest.mark.parametrize("name", [*NAMES, *EMPTY_NAMES])
def test_names_say_what_they_hold(name: str) -> None:
    folders = (*PACKAGES, "docs", "tests") if name in EMPTY_NAMES else PACKAGES
    places = [place for folder in folders for place in places_of_names(folder).get(name, [])]
    assert places == [], f"`{name}`: name the thing that it holds"


@pytest.mark.parametrize("name", [*NAMES, *EMPTY_NAMES])
def test_names_in_java_say_what_they_hold(name: str) -> None:
    binding = re.compile(rf"[\w>\]] {name}( [=:]|[;,()])|\b{name} ->")
    texts = {path: text for path, text in pages().items() if path.endswith(".java")}
    code = {path: re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL) for path, text in texts.items()}
    assert len(code) > 10
    assert [path for path, text in code.items() if binding.search(text)] == []


@pytest.mark.parametrize(
    "code",
    [
        "told = 1",
        "def told(): pass",
        "def f(told): pass",
        "[told for told in ()]",
        "import re as told",
        "if told := 1: pass",
        "try: pass\nexcept ValueError as told: pass",
    ],
)
def test_a_binding_is_seen_wherever_it_is(code: str) -> None:
    assert len(named(code, "told")) == 1
    assert named(code.replace("told", "recorded"), "told") == []


@functools.cache
def pages() -> dict[str, str]:
    """The text of every module and page, by its path."""
    code = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    code += (ROOT / "server/java").glob("*/*.java")
    files = [*code, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


@pytest.mark.parametrize("phrase", PHRASES)
def test_sentences_are_plain_english(phrase: str) -> None:
    words = re.compile(r"\s+".join(map(re.escape, phrase.split())), re.IGNORECASE)
    assert [path for path, text in pages().items() if words.search(text)] == []
