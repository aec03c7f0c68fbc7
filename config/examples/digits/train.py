"""Trains the digits network on scikit-learn's data, and writes all files of the example.

python config/examples/digits/train.py     takes about ten seconds; prints the accuracy on the test set
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from model import build  # noqa: E402  (the example's own folder, as `source: ./model.py:build` finds it)

MEAN, STD = 0.3053, 0.376


def images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The training and test images (uint8, N×8×8) with their labels; a quarter of them is for testing."""
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    return train_x, train_y, test_x, test_y


def normalised(pixels: np.ndarray) -> torch.Tensor:
    return ((torch.from_numpy(pixels).float() / 255 - MEAN) / STD).unsqueeze(1)


def train(epochs: int) -> tuple[torch.nn.Module, float]:
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = images()
    inputs, targets = normalised(train_x), torch.from_numpy(train_y)
    network = build()
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = epochs * (len(inputs) // 64 + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            # Shifted by a pixel at most, because that is how test images differ most from the training images.
            shift = tuple(int(by) for by in torch.randint(-1, 2, (2,)))
            batch = torch.roll(inputs[rows], shift, (2, 3))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(batch), targets[rows], label_smoothing=0.05).backward()
            optimiser.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        right = (network(normalised(test_x)).argmax(1).numpy() == test_y).mean()
    return network, float(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training images (default: 40)")
    network, accuracy = train(parser.parse_args().epochs)
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, HERE / "digits.safetensors")
    train_x, _, test_x, test_y = images()
    np.save(HERE / "calibration" / "train.npy", train_x[:256, :, :, None])
    for digit in range(10):
        Image.fromarray(test_x[test_y == digit][0]).save(HERE / "samples" / f"{digit}.png")
    print(f"test accuracy {accuracy:.4f} on {len(test_x)} images")


if __name__ == "__main__":
    main()
