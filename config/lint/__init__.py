"""TorchServe's own configuration files, for users who already have some: reads them, and checks what is in them."""

from marina.config.lint.linter import Finding, lint_file
from marina.config.lint.readers import load_model_config, load_properties

__all__ = ["Finding", "lint_file", "load_model_config", "load_properties"]
