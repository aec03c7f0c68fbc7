"""Archives in the form of TorchServe's examples answer under Marina as they do under TorchServe itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from old_archives import OLD_ARCHIVES, Asked, Old, archive_of, write_spec
from running import running
from stock_server import Answer, ask, stock_server

from marina.archiver import package as packaging
from marina.archiver.adopting import missing_in_pod, read_foreign
from marina.config.load import load_spec
from marina.config.progress import Progress

Stock = tuple[int, dict[str, tuple[Old, Path]]]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stock]:
    """A TorchServe with all archives that are asked for, and the archives."""
    store = tmp_path_factory.mktemp("old") / "store"
    store.mkdir()
    chosen = {item.callspec.params["kind"] for item in request.session.items if item.path == request.path}
    made = {kind: make for kind, make in OLD_ARCHIVES.items() if kind in chosen}
    archives = {kind: (old := make(), archive_of(store, kind, old)) for kind, make in made.items()}
    with stock_server(store, [f"Old_{kind}" for kind in archives]) as port:
        yield port, archives


@pytest.mark.parametrize("kind", OLD_ARCHIVES)
def test_an_archive_answers_as_under_torchserve(
    kind: str, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, archives = stock
    old, archive = archives[kind]
    loaded = load_spec(write_spec(tmp_path, kind, old, archive))
    if missing_in_pod(read_foreign(archive, kind)):
        # They are installed here, and so the worker has them, but a pod does not.
        monkeypatch.setattr(packaging, "rehearse", lambda *_: None)
    package = packaging.package(loaded, tmp_path / "out", progress=Progress(quiet=True))
    with running(loaded, mar=tmp_path / "out" / package.mar) as server:
        here = [ask(server.ports.inference, f"Old_{kind}", asked) for asked in old.asked]
        batched = _together(server.ports.inference, f"Old_{kind}", old.together)
    there = [ask(port, f"Old_{kind}", asked) for asked in old.asked]
    assert here == there
    assert batched == _together(port, f"Old_{kind}", old.together)


def _together(port: int, name: str, asked: list[Asked]) -> list[Answer]:
    with ThreadPoolExecutor(len(asked) or 1) as clients:
        return list(clients.map(lambda each: ask(port, name, each), asked))
