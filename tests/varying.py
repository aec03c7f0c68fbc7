"""A model whose inputs vary in length, as a spec's folder: a mean over embedded words, and a number for each word."""

from pathlib import Path
from typing import Any

MODEL = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)
        self.each = nn.Linear(16, 1)

    def forward(self, ids, mask):
        states = torch.tanh(self.mix(self.embed(ids)))
        weights = mask.to(states.dtype).unsqueeze(-1)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return self.head(mean), self.each(states).squeeze(-1)

class Unmasked(Words):
    def forward(self, ids):
        return super().forward(ids, torch.ones_like(ids))

class Year(Words):
    def forward(self, ids):
        return 2000 + self.head(self.embed(ids).mean(1))

def build():
    return Words()

def unmasked():
    return Unmasked()
"""
VARYING: dict[str, Any] = {
    "name": "words",
    "model.source": "./model.py:build",
    "model.handler": "tensor",
    "model.inputs": {
        "ids": {"shape": [{"max": 64, "buckets": [8, 64]}], "dtype": "int64", "min": 0.0, "max": 99.0},
        "mask": {"mask_of": "ids"},
    },
    "model.outputs": ["scores", "words"],
    "model.batch_sizes": [1, 4],
}


def written(folder: Path) -> Path:
    """The folder with the model in it; returns where its spec would be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    return folder / "spec.yaml"
