"""The linter for TorchServe's files that a user brings."""

from config.lint.linter import lint_file

__all__ = ["lint_file"]
