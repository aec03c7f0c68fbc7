"""Says which extra of the package a verb needs if it is not installed, and how to install it."""

from importlib.util import find_spec

from marina.config.distribution import install_command
from marina.config.errors import ToolMissing

_EXTRAS = {
    **dict.fromkeys(("init", "package", "inspect", "image", "sign", "release"), "serve,package"),
    "serve": "serve",
    "ci": "serve,package,loadtest",
    **dict.fromkeys(("loadtest", "calibrate", "compare", "judge"), "serve,loadtest"),
    "drill": "serve,loadtest,deploy",
    **dict.fromkeys(("simulate", "manifests", "verify", "deploy", "rollback", "status", "delete"), "deploy"),
}


def missing_extras(verb: str, err: ModuleNotFoundError) -> ToolMissing | None:
    """The error for a verb whose packages are not installed; None if the module itself is installed, but something in
    it is missing, which is a bug."""
    module = (err.name or "").partition(".")[0]
    if not module or find_spec(module) is not None:
        return None
    hint = install_command(_EXTRAS[verb]) if verb in _EXTRAS else install_command()
    return ToolMissing(f"`marina {verb}` needs `{module}`, which is not installed", hint=hint)
