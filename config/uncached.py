"""What a request says that must be computed, whatever is kept: proofs and measurements would else be of the cache."""

# `handlers/caching` neither answers such a request nor keeps its answer.
UNCACHED = {"Cache-Control": "no-store"}
