"""Trains the iris network on scikit-learn's data and writes its weights.

python config/examples/custom/train.py     takes a few seconds; prints the accuracy on the test set
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from model import Iris  # noqa: E402  (the example's own folder, as `source: ./model.py:build` finds it)

STEPS = 300


def main() -> None:
    torch.manual_seed(0)
    iris = load_iris()
    parts = train_test_split(iris.data, iris.target, test_size=0.3, random_state=0, stratify=iris.target)
    train_x, test_x = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    train_y, test_y = (torch.tensor(part) for part in parts[2:])
    network = Iris()
    network.mean.copy_(train_x.mean(dim=0))
    network.std.copy_(train_x.std(dim=0))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.nn.functional.nll_loss(network(train_x).log(), train_y).backward()
        optimiser.step()
    save_file(network.state_dict(), HERE / "iris.safetensors")
    with torch.no_grad():
        right = (network(test_x).argmax(1) == test_y).float().mean()
    print(f"test accuracy {right:.4f} on {len(test_x)} flowers")


if __name__ == "__main__":
    main()
