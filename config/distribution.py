"""What Marina is called where pip installs it: `marina` on PyPI is somebody else's program."""

import json
import os
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from marina.config.errors import ToolMissing

DISTRIBUTION = "marina-torchserve"
_ALL_EXTRAS = "serve,package,loadtest,deploy"
# The folder around the package `marina`: a clone, or site-packages.
_ROOT = Path(__file__).parents[2]


def distribution_version() -> str:
    """The version of the installed Marina; ToolMissing in a clone that is not set up."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as err:
        raise ToolMissing("Marina is not installed here, so it has no version", hint=install_command()) from err


def install_command(extras: str = _ALL_EXTRAS) -> str:
    """The command that installs these extras, from where Marina itself came: a clone, a wheel or an index."""
    if (_ROOT / "pyproject.toml").is_file():
        return "make setup"
    origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    python = short_path(Path(sys.executable))
    tool = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    at = f" @ {origin['url']}" if "url" in origin else ""
    return f"{tool} '{DISTRIBUTION}[{extras}]{at}'"


def short_path(program: Path) -> str:
    """The path of a program, absolute or from the current folder, whichever is shorter."""
    absolute, relative = os.path.abspath(program), os.path.relpath(program)
    return min((absolute, relative if "/" in relative else f"./{relative}"), key=len)
