"""The process beside TorchServe that makes it fit for production: one Java child, honest readiness, a drain that loses
nothing, one page of metrics. It imports of ours only `config`, and never torch.

Its rooms, each of which imports only those before it: system, java, watching, pages."""

from server.java import check_ports, find_java
from server.serve import serve
from server.system import Exit, adopt_orphans, children

__all__ = ["Exit", "adopt_orphans", "check_ports", "children", "find_java", "serve"]
