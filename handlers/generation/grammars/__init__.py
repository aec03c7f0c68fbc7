"""Answers that match a schema: from a request's `response_format` to the tokens that may come next."""

from marina.handlers.generation.grammars.compiler import GrammarRefused, Grammars, PendingGrammar
from marina.handlers.generation.grammars.formats import read_schema, with_options

__all__ = ["GrammarRefused", "Grammars", "PendingGrammar", "read_schema", "with_options"]
