"""How little room for temporary files is too little: the server warns from there on, and an alert fires."""

# Below it a model that a new worker unpacks may not fit.
LOW_BYTES = 64_000_000
