"""`make docs`: writes the pages of `docs/reference/` that come from the code. A test holds the committed ones to it.

Texts come from where users and tools read them, too: the spec's docstrings, the options' help texts, the HELP lines of
metrics, the docstrings of errors and records, the texts of rules."""

import argparse
import ast
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import marina
from marina.command import parser
from marina.config.errors import MarinaError
from marina.config.measured import Evidence
from marina.config.record import ImageRecord, Package, Part
from marina.config.reference import render_reference
from marina.handlers.validation import AnswerError, RequestError
from marina.k8s.monitoring.catalogue import CATALOGUE, Kind, Series
from marina.k8s.rollout.record import RolloutRecord
from marina.k8s.verify import all_rules
from marina.loadtest.comparing.comparison import Comparison
from marina.loadtest.judging.record import LoadTestOutcome
from marina.server.system.exits import Exit

REFERENCE = Path(__file__).parent / "reference"
SOURCES = Path(marina.__file__).parent.parent


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {
        "spec.md": render_reference(),
        "command-line.md": "".join(_command_line()),
        "metrics.md": "".join(_metrics()),
        "errors.md": "".join(_errors()),
        "rules.md": "".join(_rules()),
        "records.md": "".join(_records()),
    }


def _table(*titles: str, rows: Iterable[Iterable[str]]) -> str:
    cells = [" | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row) for row in rows]
    lines = [" | ".join(titles), " | ".join("---" for _ in titles), *cells]
    return "\n" + "".join(f"| {line} |\n" for line in lines)


# The command line


def _command_line() -> Iterator[str]:
    whole = parser()
    verbs = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    yield f"# The command line\n\n{whole.description} `marina VERB --help` prints what this page says about a verb.\n"
    about = {choice.dest: choice.help or "" for choice in verbs._choices_actions}
    yield _table("verb", "what it does", rows=((f"[`{name}`](#marina-{name})", text) for name, text in about.items()))
    for name, verb in verbs.choices.items():
        usage = " ".join(verb.format_usage().removeprefix("usage: ").split())
        yield f"\n## `marina {name}`\n\n{verb.description}\n\n```console\n$ {usage}\n```\n"
        yield _table("", "", rows=map(_option, _shown(verb)))
        examples, _, codes = (verb.epilog or "").partition("\n\n")
        commands = textwrap.dedent(examples.partition("\n")[2]).splitlines()
        yield "\n```console\n" + "".join(f"$ {line}\n" for line in commands) + "```\n"
        if codes and codes not in (whole.epilog or ""):
            yield f"\n{_exit_codes(codes)}"
    yield f"\n## Exit codes\n\n{_exit_codes(whole.epilog or '')}"


def _shown(verb: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in verb._actions if action.dest != "help" and action.help != argparse.SUPPRESS]


def _option(action: argparse.Action) -> tuple[str, str]:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = "" if action.nargs == 0 else str(action.metavar or choices)
    names = [f"`{name} {value}`" if value else f"`{name}`" for name in action.option_strings] or [f"`{value}`"]
    return ", ".join(names), (action.help or "").replace("%%", "%")


def _exit_codes(text: str) -> str:
    rows = re.findall(r"^  (\d+) +(.+)$", text, re.MULTILINE)
    return "Exit codes:\n" + _table("code", "meaning", rows=rows)


# Metrics


def _metrics() -> Iterator[str]:
    yield (
        "# Metrics\n\nThis page lists what a server exports on the supervisor's `/metrics`, and what rules, dashboard\n"
        "and autoscaler read besides it. A scrape adds `namespace`, `pod`, `container`, `job` and `instance`.\n"
        "`marina verify SPEC --live URL` compares a running server with this page.\n"
    )
    told = {series.name: text for series, text in _exported()}
    known = {series.name: series for series, _ in _exported()} | CATALOGUE
    yield "\n## Of a server\n"
    pages = sorted((series for series in known.values() if series.source == "page"), key=lambda series: series.name)
    yield _table(
        "metric", "type", "labels", "what it is", rows=(_metric(each, told.get(each.name, "")) for each in pages)
    )
    for source in ("kube-state-metrics", "cadvisor", "dcgm"):
        found = [series for series in CATALOGUE.values() if series.source == source]
        yield f"\n## From {source}\n" + _table(
            "metric", "type", "labels", rows=(_metric(each, "")[:3] for each in found)
        )


def _metric(series: Series, text: str) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in sorted(series.labels))
    only = f" (only with {series.only_on})" if series.only_on else ""
    return f"`{series.name}`", series.kind, labels, text.rstrip(".") + only


@cache
def _exported() -> tuple[tuple[Series, str], ...]:
    """Each metric of a server with its HELP text, read from the calls that make it."""
    found: dict[str, tuple[Series, str]] = {}
    for folder in ("server/watching", "handlers"):
        for file in sorted((SOURCES / folder).rglob("*.py")):
            for series, text in _calls(ast.parse(file.read_text(encoding="utf-8"))):
                found.setdefault(series.name, (series, text))
    return tuple(found.values())


def _calls(tree: ast.Module) -> Iterator[tuple[Series, str]]:
    words: dict[str, str] = {}
    for node in sorted(ast.walk(tree), key=lambda node: (getattr(node, "lineno", 0), not isinstance(node, ast.Assign))):
        if isinstance(node, ast.Assign):
            words |= _assigned(node, words)
            if isinstance(node.targets[0], ast.Subscript):
                yield from _named_by_keys([(node.targets[0].slice, node.value)], words)
        elif isinstance(node, ast.Dict):
            yield from _named_by_keys(zip(node.keys, node.values, strict=True), words)
        elif isinstance(node, ast.Call | ast.Tuple):
            name, *rest = [_text(each, words) for each in (node.args if isinstance(node, ast.Call) else node.elts)] or [
                None
            ]
            texts = [text for text in rest if text and " " in text]
            if name and texts and re.fullmatch(r"(marina|inference|ts)_[a-z_]+", name):
                yield _series_of(name, node), texts[0]


def _named_by_keys(
    pairs: Iterable[tuple[ast.expr | None, ast.expr]], words: Mapping[str, str]
) -> Iterator[tuple[Series, str]]:
    """The metrics of a table `{"ready": (value, "its text")}`, without the `marina_` of their names."""
    for key, value in pairs:
        name = f"marina_{_text(key, {})}" if key else ""
        texts = [text for each in getattr(value, "elts", []) if (text := _text(each, words)) and " " in text]
        if isinstance(value, ast.Tuple) and texts and re.fullmatch(r"marina_[a-z_]+", name):
            yield _series_of(name, value), texts[0]


def _series_of(name: str, node: ast.Call | ast.Tuple) -> Series:
    made = ast.unparse(node.func).rpartition(".")[2].strip("_").lower() if isinstance(node, ast.Call) else ""
    # The client library adds `_total` to a counter's name.
    kind: Kind = (
        "counter"
        if made.startswith("counter") or name.endswith("_total")
        else "histogram"
        if "histogram" in made
        else "gauge"
    )
    full = f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
    lists = [each for each in ast.walk(node) if isinstance(each, ast.List)]
    labels = {word for each in lists for item in each.elts if (word := _text(item, {}))}
    return CATALOGUE.get(full, Series(full, kind, "page", frozenset(labels)))


def _assigned(node: ast.Assign, words: Mapping[str, str]) -> dict[str, str]:
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    return {name.id: text for name, what in pairs if isinstance(name, ast.Name) and (text := _text(what, words))}


def _text(node: ast.AST, words: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part.value if isinstance(part, ast.FormattedValue) else part, words) for part in node.values]
        return "".join(part or "" for part in parts)
    return words.get(node.id) if isinstance(node, ast.Name) else None


# Errors


def _errors() -> Iterator[str]:
    yield (
        "# Errors\n\nAn error of the command line says what is wrong, where, what was given and what is allowed,\n"
        "and its hint what to type; with `--json` it is JSON.\n"
        "[Troubleshooting](../how-to/troubleshooting.md) lists messages with their causes.\n"
    )
    yield "\n## Of the command line\n"
    kinds = _subclasses(MarinaError)
    yield _table(
        "error", "exit code", "what it is", rows=((f"`{k.__name__}`", str(k.exit_code), _first(k)) for k in kinds)
    )
    yield "\n## Of a server that ends\n"
    texts = dict(_field_docs(Exit))
    yield _table("exit code", "meaning", rows=((str(code.value), texts[code.name]) for code in Exit))
    yield (
        '\n## Of a request\n\nThe body is JSON, `{"error": …}`, with `field`, `got` and `allowed` where known.\n'
        "A handler of your own may raise these, and subclasses of them. `inference_errors_total{kind}` counts them.\n"
    )
    causes = [*_subclasses(RequestError), *_subclasses(AnswerError)]
    yield _table(
        "status",
        "kind",
        "class",
        "when",
        rows=((str(k.status), f"`{k.kind}`", f"`{k.__name__}`", _first(k)) for k in causes),
    )


def _subclasses(kind: Any) -> list[Any]:
    """The class and those below it in its own module, whatever else is imported."""
    found = (each for each in kind.__subclasses__() if each.__module__ == kind.__module__)
    return [kind, *(below for each in found for below in _subclasses(each))]


def _first(kind: type) -> str:
    return re.sub(r"\s+", " ", (kind.__doc__ or "").strip()).rstrip(".")


# Rules


def _rules() -> Iterator[str]:
    yield (
        f"# Rules\n\n`marina verify SPEC` checks manifests without a cluster, by these {len(all_rules())} rules.\n"
        "An **error** is something that a cluster refuses, or that does harm in every cluster; with a **warning** it\n"
        "works, but what was measured or promised no longer holds. `marina verify --explain RULE` prints one rule.\n"
    )
    rows = ((f"`{rule.id}`", rule.level, rule.what, rule.why, rule.fix) for rule in all_rules())
    yield _table("rule", "level", "what", "why", "what to do", rows=rows)


# Records

_DOCUMENTS: tuple[tuple[str, type], ...] = (
    ("`package.json`, written by `marina package`", Package),
    ("`verdict.json`, written by `marina loadtest`", LoadTestOutcome),
    ("`evidence.json`, written by `marina calibrate`", Evidence),
    ("`compare.json`, written by `marina compare`", Comparison),
    ("`image.json`, written by `marina image`", ImageRecord),
    ("`rollout.json`, written by `marina deploy`, `rollback` and `delete`", RolloutRecord),
)
# What is called otherwise in JSON than in Python.
_IN_JSON = {"changes": "objects", "waited": "rollout", "back": "rollback"}


def _records() -> Iterator[str]:
    yield (
        "# Records\n\nStages exchange JSON files in `build/NAME/`. Each has a `schema`; a later version only adds\n"
        "fields, or has another number. Names of times end in `_s` (seconds) or `_ms`; shares are between 0\n"
        "and 1; None is `null` in JSON.\n"
    )
    seen: set[type] = set()
    for title, document in _DOCUMENTS:
        yield f"\n## {title}\n"
        yield from _record(document, seen, top=True)


def _record(kind: type, seen: set[type], *, top: bool = False) -> Iterator[str]:
    seen.add(kind)
    docs, hints = dict(_field_docs(kind)), get_type_hints(kind)
    own = [name for name in _fields(kind) if not name.startswith("_")]
    if not top:
        yield f"\n### {kind.__name__}\n"
    if _own_doc(kind):
        yield f"\n{textwrap.fill(_own_doc(kind), 120)}\n"
    rows = ((f"`{_IN_JSON.get(name, name.rstrip('_'))}`", _kind(hints[name]), docs.get(name, "")) for name in own)
    yield _table("field", "type", "meaning", rows=rows)
    for inner in dict.fromkeys(part for name in own for part in _parts(hints[name])):
        if inner not in seen:
            yield from _record(inner, seen)


def _own_doc(kind: type) -> str:
    text = re.sub(r"\s+", " ", (vars(kind).get("__doc__") or "").strip())
    return "" if text.startswith(f"{kind.__name__}(") else text


def _fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind.model_fields)  # type: ignore[attr-defined]


def _field_docs(kind: type) -> Iterator[tuple[str, str]]:
    """The docstrings below the fields of a class, and those of its bases."""
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("marina."):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            for field, text in zip(body.body, body.body[1:], strict=False):
                name = getattr(field, "target", None) or next(iter(getattr(field, "targets", [])), None)
                if isinstance(name, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    yield name.id, str(text.value.value)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, Part) or dataclasses.is_dataclass(kind))


def _parts(kind: Any) -> Iterator[type]:
    if _is_record(kind):
        yield kind
    for inner in get_args(kind):
        yield from _parts(inner)


_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null", Any: "anything"}


def _kind(kind: Any) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return ", ".join(f"`{word}`" if word else "empty" for word in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_kind, inner))
    if origin in (tuple, list):
        many = list(dict.fromkeys(_kind(part) for part in inner if part is not Ellipsis))
        return f"list of {many[0]}" if len(many) == 1 else f"list of {', '.join(many)}"
    if origin is dict:
        return f"{_kind(inner[1])}, by name"
    if kind in [document for _, document in _DOCUMENTS]:
        return "another such record"
    if _is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return _kind(inner[0]) if inner else kind.__name__


def write() -> None:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
