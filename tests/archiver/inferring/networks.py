"""Networks that tests make of layers and a function."""

from typing import Any

from torch import nn


class Net(nn.Module):
    """A network of named layers, and a function that computes with them."""

    def __init__(self, forward: Any, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.forward = forward.__get__(self)
