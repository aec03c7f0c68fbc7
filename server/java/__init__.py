"""TorchServe's Java: how it is started, what it says, how it is held."""
