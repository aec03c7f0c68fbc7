"""A rule about several fields of a spec, and the tables that rules are in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from config.spec import Spec

Conflicts = Iterator[tuple[str, str, str | None]]
Rule = Callable[[Spec], Conflicts]
Table = list[tuple[tuple[str, ...], Rule]]
# Rules about the form of one value come first: what such a rule refuses is not looked at again by another.
FORMS: Table = []
COMBINATIONS: Table = []
FILES: Table = []


def rule(*fields: str, into: Table = COMBINATIONS) -> Callable[[Rule], Rule]:
    """Registers a generator over a whole spec of (field, text, hint), with the fields that it looks at."""

    def register(conflicts: Rule) -> Rule:
        into.append((fields, conflicts))
        return conflicts

    return register
