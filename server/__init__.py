"""The supervisor: a process beside TorchServe that makes it fit for production. It runs one Java child, reports
readiness honestly, drains without losing a request, and shows all metrics on one page. Of our packages it imports only
`config`, and it never imports torch.

`serving` checks and starts everything, `supervisor` runs it from loading to stopped, and `fetch` gets the MAR in a pod.
The rooms are system, java, watching and pages; each imports only the rooms before it. Names are imported on first use,
so that `python -m marina.server` can handle signals before it imports the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marina.server.java import check_ports, find_java
    from marina.server.serving import serve
    from marina.server.system import Exit, adopt_orphans, children

__all__ = ["Exit", "adopt_orphans", "check_ports", "children", "find_java", "serve"]
_HOMES = {"check_ports": "java", "find_java": "java", "serve": "serving"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module `server` has no attribute `{name}`")
    return getattr(import_module(f"marina.server.{_HOMES.get(name, 'system')}"), name)
