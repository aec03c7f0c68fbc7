"""The cache of compiled artifacts: equal programs are compiled once, and a damaged entry is never loaded."""

import os
from pathlib import Path

import pytest
import torch
from specs import Packaged, digits_spec

from marina.archiver.compiling import cache as compile_cache
from marina.archiver.compiling.cache import cache_folder, compile_key, load_from_cache, store_in_cache
from marina.archiver.package import package
from marina.config.progress import Progress

SETTINGS = {"freezing": True}


class Model(torch.nn.Module):
    def __init__(self, scale: float = 1.0, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, width)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class SameModel(Model):
    """The same operations, from different lines of this file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def key(model: torch.nn.Module, rows: int = 2, settings: dict[str, object] = SETTINGS) -> str:
    return compile_key(torch.export.export(model, (torch.zeros(rows, 4),)), settings)


def other_weights() -> Model:
    model = Model()
    with torch.no_grad():
        model.linear.weight[0, 0] += 1e-6
    return model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARINA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_same_graph_has_the_same_key_wherever_it_was_written() -> None:
    assert key(Model()) == key(SameModel())


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda: key(other_weights()), id="a weight"),
        pytest.param(lambda: key(Model(scale=2.0)), id="a constant"),
        pytest.param(lambda: key(Model(width=5)), id="a width"),
        pytest.param(lambda: key(Model(), rows=3), id="a batch"),
        pytest.param(lambda: key(Model(), settings={"freezing": False}), id="a setting"),
        pytest.param(lambda: key(Model().double().float().bfloat16().float()), id="rounded weights"),
    ],
)
def test_what_changes_the_artifact_changes_the_key(changed: object) -> None:
    assert callable(changed)
    assert changed() != key(Model())


def test_another_number_of_threads_has_another_key() -> None:
    before, threads = key(Model()), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key(Model()) != before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("cache")
def test_a_stored_artifact_is_loaded_unchanged(tmp_path: Path) -> None:
    (made := tmp_path / "made.pt2").write_bytes(b"artifact")
    store_in_cache("k", made)
    assert load_from_cache("k", tmp_path / "again.pt2")
    assert (tmp_path / "again.pt2").read_bytes() == b"artifact"
    assert not load_from_cache("other", tmp_path / "other.pt2")


@pytest.mark.parametrize("damaged", ["k.pt2", "k.sha256"])
def test_a_damaged_entry_is_not_loaded(damaged: str, cache: Path, tmp_path: Path) -> None:
    (made := tmp_path / "made.pt2").write_bytes(b"artifact")
    store_in_cache("k", made)
    (cache / damaged).write_bytes(b"\xff")
    assert not load_from_cache("k", tmp_path / "again.pt2")
    assert not (tmp_path / "again.pt2").exists()


def test_the_least_recently_used_entry_is_deleted_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "_MOST_BYTES", 20)
    (made := tmp_path / "made.pt2").write_bytes(b"artifact")
    for name, age in (("old", 300), ("used", 200)):
        store_in_cache(name, made)
        os.utime(cache / f"{name}.pt2", (1_000_000_000 - age, 1_000_000_000 - age))
    store_in_cache("new", made)
    assert sorted(file.name for file in cache.iterdir()) == ["new.pt2", "new.sha256", "used.pt2", "used.sha256"]


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    for value in (str(tmp_path / "file" / "cache"), "off"):
        monkeypatch.setenv("MARINA_CACHE", value)
        assert cache_folder() is None
        (made := tmp_path / "made.pt2").write_bytes(b"artifact")
        store_in_cache("k", made)
        assert not load_from_cache("k", tmp_path / "again.pt2")


@pytest.mark.slow
def test_a_second_package_of_the_same_graph_compiles_nothing(
    packaged: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = packaged("fp32")
    calls = tmp_path / "calls"
    (compiler := tmp_path / "c++").write_text(f'#!/bin/sh\necho "$#" >> {calls}\nexec g++ "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    changed = {"model.batch_sizes": [1], "slo.p99_ms": 70, "serving.queue": 50}
    again = package(digits_spec(changed), tmp_path / "again", progress=Progress(quiet=True))
    asked = calls.read_text(encoding="utf-8").split()
    assert set(asked) == {"1"}, "the compiler was asked for its version, and for nothing else"
    name = again.record.artifacts[0].file
    assert first.record.files[name] == again.record.files[name]
