"""Watches a running server: readiness, memory, disk, metrics, the drain at its end."""
