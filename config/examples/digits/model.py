"""A small convolutional network for 8×8 greyscale digits, 10 classes."""

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        *_block(1, 24),
        *_block(24, 32),
        nn.MaxPool2d(2),
        *_block(32, 48),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48 * 4, 10),
    )


def _block(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
