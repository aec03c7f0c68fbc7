"""TorchServe's Java: the checks before its start, the start, and everything that is read from it or sent to it."""
