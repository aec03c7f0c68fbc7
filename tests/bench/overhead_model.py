"""Models that do next to nothing, so that what is measured is what is around them."""

import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return x[:, :4] * 2


def build():
    return Double()
