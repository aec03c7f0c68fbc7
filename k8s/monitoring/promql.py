"""Parses a PromQL expression into its selectors, with the function applied to each and the labels it must have."""

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    LabelModifierType,
    MatchOp,
    MatrixSelector,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
    parse,
)

from marina.config.errors import InputError

# What an expression is nested by, apart from texts and label matchers.
_TEXT, _MATCHERS = re.compile(r"""\"(\\.|[^"\\])*"|'(\\.|[^'\\])*'|`[^`]*`"""), re.compile(r"\{[^{}]*\}")
_NESTS = re.compile(r"[(+*/^%<>=-]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
# Text, or a number. Its digits may be grouped, as in 1_000; the parser does not know that.
_GROUPED = re.compile(rf"{_TEXT.pattern}|(?<![\w:.])\d[\d_]*")
# Far more than anybody writes; the parser crashes at some thousands.
_DEEPEST = 500


@dataclass(frozen=True)
class Matcher:
    """`label op value` in a selector."""

    label: str
    op: str
    value: str


@dataclass(frozen=True)
class Selector:
    """One series that an expression reads. `function` is the function applied to it, empty if there is none."""

    name: str
    matchers: tuple[Matcher, ...]
    function: str = ""
    needed: frozenset[str] = field(default_factory=frozenset)
    """Labels that the aggregations and vector matchings around it name."""

    @property
    def labels(self) -> frozenset[str]:
        """Every label that the series must have for this expression."""
        return self.needed | {matcher.label for matcher in self.matchers}


@dataclass(frozen=True)
class _Context:
    """What surrounds a part of an expression."""

    needed: frozenset[str] = frozenset()
    function: str = ""

    def with_labels(self, labels: list[str]) -> "_Context":
        return replace(self, needed=self.needed | set(labels))


@functools.cache
def selectors(expression: str) -> tuple[Selector, ...]:
    """Every selector of an expression, in order; none of one that is too long to read. Raises InputError if it is not
    valid PromQL."""
    if len(_NESTS.findall(_MATCHERS.sub("", _TEXT.sub("", expression)))) > _DEEPEST:
        return ()
    try:
        tree = parse(_GROUPED.sub(_without_groups, expression))
    except ValueError as err:
        raise InputError(f"`{expression}`: not PromQL: {err}") from err
    seen: list[Selector] = []
    _walk(tree, _Context(), seen)
    return tuple(seen)


def _without_groups(match: re.Match[str]) -> str:
    return match[0].replace("_", "") if match[0][0].isdigit() else match[0]


def _walk(node: Any, context: _Context, seen: list[Selector]) -> None:
    if isinstance(node, VectorSelector):
        seen.append(_selector(node, context))
    elif isinstance(node, MatrixSelector):
        seen.append(_selector(node.vector_selector, context))
    elif isinstance(node, AggregateExpr):
        _walk(node.expr, _aggregated(node, context), seen)
    elif isinstance(node, BinaryExpr):
        matching = node.modifier.matching if node.modifier else None
        # The labels in `on` must exist; those in `ignoring` may be missing.
        labels = matching.labels if matching is not None and matching.type == LabelModifierType.Include else []
        for side in (node.lhs, node.rhs):
            _walk(side, context.with_labels(labels), seen)
    elif isinstance(node, Call):
        inner = replace(context, function=node.func.name)
        if node.func.name == "label_replace":
            made = node.args[1].val
            inner = replace(inner, needed=context.needed - {made} | {node.args[3].val})
        for argument in node.args:
            _walk(argument, inner, seen)
    elif isinstance(node, ParenExpr | SubqueryExpr | UnaryExpr):
        _walk(node.expr, context, seen)


def _aggregated(node: AggregateExpr, context: _Context) -> _Context:
    modifier = node.modifier
    by = list(modifier.labels) if modifier is not None and modifier.type == AggModifierType.By else []
    return replace(context.with_labels(by), function="")


def _selector(node: VectorSelector, context: _Context) -> Selector:
    matchers = tuple(Matcher(matcher.name, _op(matcher.op), matcher.value) for matcher in node.matchers.matchers)
    name = node.name or next(
        (matcher.value for matcher in matchers if (matcher.label, matcher.op) == ("__name__", "=")), ""
    )
    own = tuple(matcher for matcher in matchers if matcher.label != "__name__")
    return Selector(name, own, context.function, context.needed)


def _op(op: MatchOp) -> str:
    return next(text for known, text in _OPS if known == op)


# The parser's operators cannot be keys of a dict.
_OPS = ((MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~"))
