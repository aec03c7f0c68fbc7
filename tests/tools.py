"""What some tests need and a plain machine may lack."""

import os
import shutil
from pathlib import Path

import pytest

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


def skip_unless_required(reason: str) -> None:
    """Skips a test, or fails it where MARINA_REQUIRE_TOOLS says that everything is installed, as in CI."""
    if os.environ.get("MARINA_REQUIRE_TOOLS"):
        pytest.fail(f"{reason}, and MARINA_REQUIRE_TOOLS is set")
    pytest.skip(reason)


def needs(*names: str, package: str) -> str:
    """The path of the first of some programs that is there; otherwise the test is skipped or fails."""
    for name in names:
        if program := shutil.which(name):
            return program
    skip_unless_required(f"`{names[0]}` is not installed: apt-get install {package}")
    raise AssertionError
