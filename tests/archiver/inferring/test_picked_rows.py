"""Numbers by which a model picks rows of a table are limited to the rows that the table has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specs import make_spec

from marina.archiver.graph import build_graph
from marina.archiver.input_limits import check_limits, limited_inputs
from marina.archiver.sources import load_source
from marina.config.errors import SourceError
from marina.config.record import Port
from marina.handlers.arrays import fit_array
from marina.handlers.record import TensorSpec
from marina.handlers.validation import Unprocessable

MODEL = """
import torch
from torch import nn

class Indexing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.eye(10))
        self.register_buffer("line", torch.arange(7.0))

    def forward(self, x, y, z):
        picked = self.table[x].sum((1, 2)) + self.line.expand(len(y), 7).gather(1, y).sum(1)
        return picked + torch.zeros(len(z), 5).scatter_add(1, z, torch.ones(len(z), 2)).amax(1)

class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(10, 4), nn.Embedding(6, 4)

class Shifted(Embedding):
    def forward(self, ids):
        return self.words(1 + ids).sum(1)

class Flat(Embedding):
    def forward(self, ids):
        return self.words(ids.t().reshape(-1) - 2).view(2, -1, 4).sum(0)

class Started(Embedding):
    def forward(self, ids):
        start = torch.full((len(ids), 1), 9)
        return self.words(torch.cat([start, ids], 1)).sum(1)

class Tail(Embedding):
    def forward(self, ids):
        return self.words(ids[:, 1:]).sum(1)

class Columns(Embedding):
    def forward(self, ids):
        return self.words(ids[:, 0]) + self.kinds(ids[:, 1])

class Fields(Embedding):
    def forward(self, ids):
        return self.words(ids + torch.tensor([0, 4])).sum(1)

class Last(Embedding):
    def forward(self, ids):
        states = torch.zeros(len(ids), 3, 4)
        return states[torch.arange(len(ids)), ids[:, 1] - 1]

class Joined(Embedding):
    def forward(self, user, item):
        return self.words(torch.stack([user, item - 1], 1)).sum(1)

class Wrapped(Embedding):
    def forward(self, ids):
        return self.words(ids % 10).sum(1) + self.kinds(ids.clamp(0, 5)).sum(1)

class Branching(Embedding):
    def forward(self, ids):
        if ids.sum() < 0:
            ids = -ids
        return self.words(ids).sum(1)

class Bits(Embedding):
    def forward(self, ids):
        low = ids.view(torch.int32)[:, ::2]
        return self.words(ids.sub(torch.ones(2).long(), alpha=0)).sum(1) + self.kinds(low).sum(1)

class Floored(Embedding):
    def forward(self, ids):
        return self.words(ids.clamp(min=0)).sum(1)

class Padded(Embedding):
    def forward(self, ids):
        return self.words(ids.masked_fill(ids == -100, 0)).sum(1)

class Chosen(Embedding):
    def forward(self, ids):
        return self.words(torch.where((ids > 9) | (ids < 0), 0, ids)).sum(1)

class Pair(Embedding):
    def forward(self, row, column):
        return self.words(row * 4 + column)

class Begun(Embedding):
    def forward(self, ids):
        return self.words(ids.prod(1) * 10 // ids.prod(1) - 1)

class Grown(Embedding):
    def forward(self, ids):
        ids += 1
        return self.words(ids).sum(1)
"""


def limited(folder: Path, name: str, inputs: dict[str, Any], *, check: bool = False) -> tuple[Port, ...]:
    """The model's inputs with their limits; `check`: also whether the model takes all that they allow."""
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    changes = {"model.source": f"./model.py:{name}", "model.handler": "tensor", "model.inputs": inputs}
    spec = make_spec(changes, folder / "spec.yaml")
    source = load_source(spec)
    graph = build_graph(spec, source, "fp32")
    ports = limited_inputs(spec, source, graph)
    if check:
        rows = tuple(torch.ones(1, *port.shape, dtype=torch.int64) for port in ports)
        check_limits(spec, replace(source, inputs=ports), graph, rows)
    return ports


def test_a_table_that_the_model_indexes_itself_limits_its_input(tmp_path: Path) -> None:
    given: dict[str, Any] = {name: {"shape": [2], "dtype": "int64"} for name in "xyz"}
    # A number below zero counts from the end, so it is allowed where the spec asks for it.
    given["x"]["min"] = -10
    limits = [(port.name, port.min, port.max) for port in limited(tmp_path, "Indexing", given)]
    assert limits == [("x", -10, 9), ("y", 0, 6), ("z", 0, 4)]


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Shifted", -1, 8),
        ("Flat", 2, 11),
        ("Started", 0, 9),
        ("Wrapped", None, None),
        ("Branching", 0, 9),
        ("Bits", None, None),
        ("Grown", -1, 8),
    ],
)
def test_numbers_computed_from_an_input_limit_it(name: str, least: int, most: int, tmp_path: Path) -> None:
    given = {"ids": {"shape": [2], "dtype": "int64", **({"min": 2} if name == "Flat" else {})}}
    (port,) = limited(tmp_path, name, given)
    assert (port.min, port.max, port.columns) == (least, most, None)


@pytest.mark.parametrize(
    ("name", "limits", "at", "hint"),
    [
        ("Floored", {}, 2**24, "`max: 9`"),
        ("Floored", {"max": 9}, None, ""),
        ("Chosen", {}, None, ""),
        ("Padded", {}, -1, "`min: 0` and `max: 9`"),
        ("Padded", {"min": -100, "max": 9}, -1, "`min: 0`"),
        ("Begun", {"min": 0, "max": 3}, 0, "`min: 1`"),
    ],
)
def test_limits_beyond_which_the_model_fails_are_asked_for(
    name: str, limits: dict[str, int], at: int | None, hint: str, tmp_path: Path
) -> None:
    given = {"ids": {"shape": [2], "dtype": "int64"} | limits}
    if at is None:
        limited(tmp_path, name, given, check=True)
        return
    with pytest.raises(SourceError, match=f"`model.inputs.ids`: the model fails at {at}, which it allows: ") as raised:
        limited(tmp_path, name, given, check=True)
    assert raised.value.hint == f"set {hint}, or limit it in `forward` by `clamp`"


def test_limits_that_the_model_takes_only_one_by_one_are_refused(tmp_path: Path) -> None:
    given = {name: {"shape": [], "dtype": "int64", "min": 0, "max": 5} for name in ("row", "column")}
    given["row"]["max"] = 2
    limited(tmp_path, "Pair", given | {"column": given["column"] | {"max": 1}}, check=True)
    with pytest.raises(SourceError, match="fails if `column`, `row` all are the largest that they allow: IndexError"):
        limited(tmp_path, "Pair", given, check=True)


def test_inputs_that_are_joined_have_limits_of_their_own(tmp_path: Path) -> None:
    given = {name: {"shape": [], "dtype": "int64", "min": least} for name, least in (("user", 0), ("item", 1))}
    user, item = limited(tmp_path, "Joined", given)
    assert (user.min, user.max, item.min, item.max) == (0, 9, 1, 10)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("Tail", ((None, None), (0, 9), (0, 9))),
        ("Columns", ((0, 9), (0, 5), (None, None))),
        ("Last", ((None, None), (0, 3), (None, None))),
    ],
)
def test_each_column_has_the_limits_of_its_own_table(name: str, columns: object, tmp_path: Path) -> None:
    (port,) = limited(tmp_path, name, {"ids": {"shape": [3], "dtype": "int64"}})
    assert (port.min, port.max, port.columns) == (None, None, columns)


def test_the_specs_limits_hold_for_every_column(tmp_path: Path) -> None:
    (port,) = limited(tmp_path, "Fields", {"ids": {"shape": [2], "dtype": "int64", "min": 0, "max": 7}})
    assert port.columns == ((0, 7), (0, 5))


def test_only_a_number_outside_the_limits_of_its_column_is_refused() -> None:
    spec = TensorSpec("ids", (2,), "int64", columns=((0, 9), (0, 5)))
    assert fit_array(np.array([9, 5]), spec).tolist() == [9, 5]
    with pytest.raises(Unprocessable) as refused:
        fit_array(np.array([9, 6]), spec)
    assert refused.value.body() == {
        "error": "a number is out of range",
        "field": "ids[1]",
        "got": 6,
        "allowed": "0 to 5",
    }
