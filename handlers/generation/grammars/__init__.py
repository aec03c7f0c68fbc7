"""Answers of a form: from a request's `response_format` to the tokens that may come next."""

from handlers.generation.grammars.compiler import Compiling, GrammarRefused, Grammars
from handlers.generation.grammars.formats import bounded, read_schema

__all__ = ["Compiling", "GrammarRefused", "Grammars", "bounded", "read_schema"]
