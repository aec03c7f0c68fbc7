"""Registers rules about several fields of a spec, and those about the files that it names."""

from collections.abc import Callable, Iterator

from marina.config.spec import Spec

Conflicts = Iterator[tuple[str, str, str | None]]
Rule = Callable[[Spec], Conflicts]
Table = list[tuple[tuple[str, ...], Rule]]
COMBINATIONS: Table = []
FILES: Table = []


def rule(*fields: str, into: Table = COMBINATIONS) -> Callable[[Rule], Rule]:
    """Registers a function that yields (field, text, hint) for a spec, together with the fields that it reads."""

    def register(function: Rule) -> Rule:
        into.append((fields, function))
        return function

    return register
