"""The header of requests that must be computed: checks and measurements would otherwise test the cache."""

# `handlers/caching` neither answers such a request from the cache nor stores its answer.
UNCACHED = {"Cache-Control": "no-store"}
