from dataclasses import dataclass

import torch
from torch import nn


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(12, 8)
        self.layers = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, numbers, kind):
        return self.layers(torch.cat([numbers, self.kinds(kind)], dim=1))


class Words(nn.Module):
    def __init__(self, words=1000, classes=3):
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor):
        weights = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * weights).sum(1) / weights.sum(1))


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 8, 32, stride=32)
        self.boxes = nn.Conv2d(8, 4, 1)
        self.scores = nn.Conv2d(8, 3, 1)

    def forward(self, images):
        features = self.features(images).relu()
        scores = self.scores(features).flatten(2).transpose(1, 2)
        return {"scores": scores.sigmoid(), "boxes": self.boxes(features).flatten(2).transpose(1, 2)}


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 5)
        self.second = nn.Conv2d(6, 16, 5)
        self.head = nn.Linear(400, 10)

    def forward(self, x):
        x = torch.max_pool2d(self.first(x).relu(), 2)
        x = torch.max_pool2d(self.second(x).relu(), 2)
        return self.head(x.flatten(1))


class Shrinks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        while x.norm() > 1:
            x = self.layer(x) * 0.5
        return x


@dataclass
class Weighed:
    share: torch.Tensor
    sums: torch.Tensor
    note: torch.Tensor | None = None


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, x, scale=None, *, side):
        sums = self.left(x) + self.right(side)
        return Weighed(sums.softmax(-1), sums)


segments = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
