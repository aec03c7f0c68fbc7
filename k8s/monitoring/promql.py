"""What an expression asks of the series it names: its selectors, the functions around them, the labels it needs."""

from __future__ import annotations

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

from config.errors import InputError


@dataclass(frozen=True)
class Matcher:
    """`label op value` in a selector."""

    label: str
    op: str
    value: str


@dataclass(frozen=True)
class Selector:
    """One series that an expression reads; `function` is what is applied to its range, if it has one."""

    name: str
    matchers: tuple[Matcher, ...]
    function: str = ""
    needed: frozenset[str] = field(default_factory=frozenset)
    """Labels that aggregations and matchings around it name."""

    @property
    def labels(self) -> frozenset[str]:
        """Every label that the expression needs of it."""
        return self.needed | {matcher.label for matcher in self.matchers}


@dataclass(frozen=True)
class _Around:
    """What stands around a part of an expression."""

    needed: frozenset[str] = frozenset()
    function: str = ""

    def also(self, labels: list[str]) -> _Around:
        return replace(self, needed=self.needed | set(labels))


def selectors(expression: str) -> list[Selector]:
    """Every selector of an expression, in order; InputError when it is not PromQL."""
    try:
        tree = parse(expression)
    except ValueError as err:
        raise InputError(f"`{expression}`: not PromQL: {err}") from err
    seen: list[Selector] = []
    _walk(tree, _Around(), seen)
    return seen


def _walk(node: Any, around: _Around, seen: list[Selector]) -> None:
    if isinstance(node, VectorSelector):
        seen.append(_selector(node, around))
    elif isinstance(node, MatrixSelector):
        seen.append(_selector(node.vector_selector, around))
    elif isinstance(node, AggregateExpr):
        _walk(node.expr, _aggregated(node, around), seen)
    elif isinstance(node, BinaryExpr):
        matching = node.modifier.matching if node.modifier else None
        # `ignoring` names labels that may be missing; `on` ones that must be there.
        labels = matching.labels if matching is not None and matching.type == LabelModifierType.Include else []
        for side in (node.lhs, node.rhs):
            _walk(side, around.also(labels), seen)
    elif isinstance(node, Call):
        inner = replace(around, function=node.func.name)
        if node.func.name == "label_replace":
            made = node.args[1].val
            inner = replace(inner, needed=around.needed - {made} | {node.args[3].val})
        for argument in node.args:
            _walk(argument, inner, seen)
    elif isinstance(node, ParenExpr | SubqueryExpr | UnaryExpr):
        _walk(node.expr, around, seen)


def _aggregated(node: AggregateExpr, around: _Around) -> _Around:
    modifier = node.modifier
    by = list(modifier.labels) if modifier is not None and modifier.type == AggModifierType.By else []
    return replace(around.also(by), function="")


def _selector(node: VectorSelector, around: _Around) -> Selector:
    matchers = tuple(Matcher(matcher.name, _op(matcher.op), matcher.value) for matcher in node.matchers.matchers)
    name = node.name or next(
        (matcher.value for matcher in matchers if (matcher.label, matcher.op) == ("__name__", "=")), ""
    )
    own = tuple(matcher for matcher in matchers if matcher.label != "__name__")
    return Selector(name, own, around.function, around.needed)


def _op(op: MatchOp) -> str:
    return next(text for known, text in _OPS if known == op)


# The parser's operators cannot be keys of a dict.
_OPS = ((MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~"))
