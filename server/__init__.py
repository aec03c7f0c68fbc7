"""The process beside TorchServe that makes it fit for production: one Java child, honest readiness, a drain that loses
nothing, one page of metrics. It imports of ours only `config`, and never torch."""

from server.running import Running, running
from server.serve import serve
from server.system.exits import Exit

__all__ = ["Exit", "Running", "running", "serve"]
