"""What many tests share: packages of the digits example, each made once and kept while what it is made of stays."""

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from specs import ROOT, Packaged, digits_spec
from tools import needs

from config.progress import Progress
from config.record import Package, read_package

VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"model.precision": "bf16"},
    "int8": {"model.precision": "int8"},
    "jit": {"model.compile": "jit", "model.precision": "int8"},
    "eager": {"model.compile": "eager"},
    "fallback": {"model.on_mismatch": "jit"},
}
# What a package is made of. The server is not in it, so that working on it packages nothing again.
INGREDIENTS = ("archiver", "config", "handlers")


@pytest.fixture(scope="session")
def packaged() -> Packaged:
    """The folder and the record of a variant of the digits example, packaged at its first use."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in INGREDIENTS for file in (ROOT / folder).rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.name.encode() + file.read_bytes())
    home = ROOT / "build" / "tests" / digest.hexdigest()[:12]

    def package(variant: str) -> tuple[Path, Package]:
        folder = home / variant
        if not (folder / "package.json").exists():
            needs("g++", package="g++")
            from archiver.package import package as build

            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=home) as partial:
                build(digits_spec(VARIANTS[variant]), Path(partial, "out"), progress=Progress(quiet=True))
                # Another session may have been faster; one of two equal packages stays.
                with suppress(OSError):
                    os.replace(Path(partial, "out"), folder)
        return folder, read_package(folder)

    for old in home.parent.glob("*"):
        if old != home:
            shutil.rmtree(old)
    return package
