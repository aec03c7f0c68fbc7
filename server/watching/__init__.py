"""Whether the server is well: readiness, memory, metrics, the drain."""
