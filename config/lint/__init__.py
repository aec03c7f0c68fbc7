"""The linter for TorchServe's own configuration files, for users who already have some."""

from marina.config.lint.linter import lint_file

__all__ = ["lint_file"]
