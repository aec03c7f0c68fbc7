"""Tells three species of iris apart by four lengths; the mean and deviation of the training data are in the model."""

import torch
from torch import nn


class Iris(nn.Module):
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("std", torch.ones(4))
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers((lengths - self.mean) / self.std), dim=-1)


def build() -> nn.Module:
    return Iris()
