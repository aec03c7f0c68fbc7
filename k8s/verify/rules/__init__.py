"""The rules of `verify`, one module a topic."""
