"""Loads a user's own handler when a model is packaged, and checks what it declares that it takes and gives."""

from marina.archiver.own_handler.declared_forms import check_answer, declared_forms, example_body

__all__ = ["check_answer", "declared_forms", "example_body"]
