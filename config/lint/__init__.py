"""The linter for TorchServe's files that a user brings."""
