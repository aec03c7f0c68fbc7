"""Parses a PromQL expression into its selectors, with the function applied to each and the labels it must have."""

import functools
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


@functools.cache
def selectors(expression: str) -> tuple[Selector, ...]:
    """Every selector of an expression, in order. Raises InputError if it cannot be parsed."""
    try:
        tree = parse(expression)
    except ValueError as err:
        raise InputError(f"`{expression}`: not PromQL: {err}") from err
    seen: list[Selector] = []
    _walk(tree, "", frozenset(), seen)
    return tuple(seen)


def _walk(node: Any, function: str, needed: frozenset[str], seen: list[Selector]) -> None:
    """Collects the selectors below a node; `function` and `needed` come from what is around it."""
    if isinstance(node, VectorSelector):
        seen.append(replace(_selector(node), function=function, needed=needed))
    elif isinstance(node, MatrixSelector):
        _walk(node.vector_selector, function, needed, seen)
    elif isinstance(node, AggregateExpr):
        modifier, made = node.modifier, {_text(node.param)}
        by = modifier.labels if modifier is not None and modifier.type == AggModifierType.By else []
        _walk(node.expr, "", needed - made | set(by), seen)
    elif isinstance(node, BinaryExpr):
        matching = node.modifier.matching if node.modifier else None
        # The labels in `on` must exist; those in `ignoring` may be missing.
        on = matching.labels if matching is not None and matching.type == LabelModifierType.Include else []
        for side in (node.lhs, node.rhs):
            _walk(side, function, needed | set(on), seen)
    elif isinstance(node, Call):
        name, texts = node.func.name, [_text(argument) for argument in node.args]
        if name in ("label_join", "label_replace"):
            read = texts[3:4] if name == "label_replace" else texts[3:]
            needed = needed - {texts[1]} | set(filter(None, read))
        for argument in node.args:
            _walk(argument, name, needed, seen)
    elif isinstance(node, ParenExpr | SubqueryExpr | UnaryExpr):
        _walk(node.expr, function, needed, seen)


def _text(node: Any) -> str:
    """The text that an argument is, also in brackets; empty if it is no text."""
    while isinstance(node, ParenExpr):
        node = node.expr
    value = getattr(node, "val", "")
    return value if isinstance(value, str) else ""


def _selector(node: VectorSelector) -> Selector:
    matchers = [Matcher(matcher.name, _op(matcher.op), matcher.value) for matcher in node.matchers.matchers]
    names = [matcher.value for matcher in matchers if (matcher.label, matcher.op) == ("__name__", "=")]
    own = tuple(matcher for matcher in matchers if matcher.label != "__name__")
    return Selector(node.name or next(iter(names), ""), own)


def _op(op: MatchOp) -> str:
    # The parser's operators cannot be keys of a dict.
    known = ((MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~"))
    return next(text for other, text in known if other == op)
