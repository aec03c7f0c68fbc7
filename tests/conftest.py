"""What many tests share: packages of the digits example, each made once a session."""

from pathlib import Path
from typing import Any

import pytest
from specs import Packaged, digits_spec

from config.progress import Progress
from config.record import Package

VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"model.precision": "bf16"},
    "int8": {"model.precision": "int8"},
    "jit": {"model.compile": "jit", "model.precision": "int8"},
    "eager": {"model.compile": "eager"},
    "fallback": {"model.on_mismatch": "jit"},
}


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    """The folder and the record of a variant of the digits example, packaged at its first use."""
    made: dict[str, tuple[Path, Package]] = {}

    def package(variant: str) -> tuple[Path, Package]:
        if variant not in made:
            from archiver.package import package as build

            out = tmp_path_factory.mktemp(variant)
            made[variant] = out, build(digits_spec(VARIANTS[variant]), out, progress=Progress(quiet=True))
        return made[variant]

    return package
