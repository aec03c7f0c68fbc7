"""The supervisor: a process beside TorchServe that makes it fit for production. It runs one Java child, reports
readiness honestly, drains without losing a request, and shows all metrics on one page. Of our packages it imports only
`config`, and it never imports torch.

Its rooms are system, java, watching and pages; each imports only the rooms before it. Names are imported on first use,
so that `python -m server` can handle signals before it imports the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.java import check_ports, find_java
    from server.serving import serve
    from server.system import Exit, adopt_orphans, children

_HOMES = ("system", "java", "serving")


def __getattr__(name: str) -> Any:
    # Python asks for names such as `__path__`, and these must not load everything.
    for home in () if name.startswith("_") else _HOMES:
        if hasattr(module := import_module(f"server.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module `server` has no attribute `{name}`")
