"""A handler of the user's own, where a model is packaged: its class, and what it says that it takes and gives."""

from archiver.own.forms import check_answer, declared, example_body
from archiver.own.handler import own_handler

__all__ = ["check_answer", "declared", "example_body", "own_handler"]
