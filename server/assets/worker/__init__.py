"""A folder on the path of TorchServe's workers."""
