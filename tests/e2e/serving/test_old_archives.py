"""Archives in the form of TorchServe's examples answer under Marina as they do under TorchServe itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from archives import make_archive
from old_archives import OLD_ARCHIVES, Asked, Old
from running import running
from stock_server import Answer, ask, stock_server

from marina.archiver import package as packaging
from marina.archiver.adopting import missing_in_pod, read_foreign
from marina.config.load import load_spec
from marina.config.progress import Progress

Stock = tuple[int, dict[str, tuple[Old, Path]]]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """A TorchServe with all archives, and the archives."""
    store = tmp_path_factory.mktemp("old") / "store"
    store.mkdir()
    archives = {kind: (old := make(), _archive(store, kind, old)) for kind, make in OLD_ARCHIVES.items()}
    with stock_server(store, [f"Old_{kind}" for kind in archives]) as port:
        yield port, archives


def _archive(store: Path, kind: str, old: Old) -> Path:
    options = {"name": f"Old_{kind}", "handler": old.handler, "form": old.form, "config": old.config or None}
    return make_archive(store, old.files, **options, **old.options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", OLD_ARCHIVES)
def test_an_archive_answers_as_under_torchserve(
    kind: str, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, archives = stock
    old, archive = archives[kind]
    (tmp_path / "body").write_bytes(old.sample.body)
    serving = {"workers": 1, "threads": 1, "max_batch": old.config.get("batchSize", 1), "drain_propagation_s": 0}
    spec = {
        "name": f"old-{kind}",
        "model": {"source": str(archive), "handler": "archive", "name": f"Old_{kind}", "version": "v1"},
        "serving": serving | {"max_batch_delay_ms": old.config.get("maxBatchDelay", 100)},
        "load": {"sample": "./body"} | ({"content_type": old.sample.content_type} if old.sample.content_type else {}),
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    loaded = load_spec(tmp_path / "spec.yaml")
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
