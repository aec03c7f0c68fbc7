"""Says which extra of the package a verb needs if it is not installed, and how to install it."""

import json
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from config.errors import ToolMissing
from marina.terminal import short_path

_EXTRAS = {
    **dict.fromkeys(("init", "package", "inspect", "image"), "serve,package"),
    "serve": "serve",
    **dict.fromkeys(("loadtest", "calibrate", "compare"), "serve,loadtest"),
    **dict.fromkeys(("simulate", "manifests", "verify", "deploy", "rollback", "status", "delete"), "deploy"),
}
_ALL = "serve,package,loadtest,deploy"


def missing_extras(verb: str, err: ModuleNotFoundError) -> ToolMissing | None:
    """The error for a verb whose packages are not installed; None if the module itself is installed, but something in
    it is missing, which is a bug."""
    module = (err.name or "").partition(".")[0]
    if not module or find_spec(module) is not None:
        return None
    return ToolMissing(f"`marina {verb}` needs `{module}`, which is not installed", hint=install_command(verb))


def install_command(verb: str) -> str:
    """The command that installs the packages of a verb, from where Marina itself was installed."""
    python = short_path(Path(sys.executable))
    tool = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    extras = _EXTRAS.get(verb, _ALL)
    origin = json.loads(metadata.distribution("marina").read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return "make setup"
    at = f" @ {origin['url']}" if "url" in origin else ""
    return f"{tool} 'marina[{extras}]{at}'"
