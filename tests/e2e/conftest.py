"""Servers for the e2e tests: the digits model, packaged once and kept while nothing it is made of changes, and a tiny
one that does what it is told."""

import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from running import Running, running
from specs import Packaged, digits_spec
from tiny import make_tiny

from marina.config.render import render_model_config
from marina.config.spec import Spec

Start = Callable[..., Running]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def digits_mar(packaged: Packaged) -> Path:
    """The packaged digits example."""
    folder, package = packaged("fp32")
    return folder / package.mar


@pytest.fixture(scope="session")
def digits_server(digits_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One digits server that no test harms."""
    log = tmp_path_factory.mktemp("digits") / "server.log"
    with running(served_digits(), mar=digits_mar, log=log, docs=True) as server:
        yield server


@pytest.fixture
def start_tiny(tmp_path: Path) -> Iterator[Start]:
    """Starts tiny servers, ready when it returns unless `wait` is false; `serving` are fields of the spec."""
    with ExitStack() as servers:

        def start_one(*, environment: dict[str, str] | None = None, wait: bool = True, **serving: Any) -> Running:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            spec, mar = make_tiny(folder, **serving)
            log = folder / "server.log"
            return servers.enter_context(running(spec, mar=mar, log=log, environment=environment, wait=wait))

        yield start_one


@pytest.fixture(scope="module")
def module_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One tiny server that no test of its module harms."""
    folder = tmp_path_factory.mktemp("tiny")
    spec, mar = make_tiny(folder)
    with running(spec, mar=mar, log=folder / "server.log") as server:
        yield server


@pytest.fixture
def start_digits(digits_mar: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts digits servers, ready when it returns unless `wait` is false; `serving` are fields of the spec, `files`
    what is to be otherwise in the MAR."""
    with ExitStack() as servers:

        def start_one(
            *,
            environment: dict[str, str] | None = None,
            wait: bool = True,
            files: Mapping[str, bytes] | None = None,
            **serving: Any,
        ) -> Running:
            folder, spec = Path(tempfile.mkdtemp(dir=tmp_path)), served_digits(**serving)
            mar = packaged_for(spec, digits_mar, folder / "model.mar", files)
            log = folder / "server.log"
            return servers.enter_context(running(spec, mar=mar, log=log, environment=environment, wait=wait))

        yield start_one


def served_digits(**serving: object) -> Spec:
    """The digits spec as tests serve it: nobody has to learn of its end first, and the package fits any number of
    workers."""
    fields = {"drain_propagation_s": 0, "threads": 1} | serving
    return digits_spec({f"serving.{name}": value for name, value in fields.items()})


def packaged_for(spec: Spec, mar: Path, target: Path, files: Mapping[str, bytes] | None = None) -> Path:
    """A copy of a MAR as packaging writes it for other fields of `serving`, without compiling again."""
    changed = {"model-config.yaml": render_model_config(spec).encode()} | dict(files or {})
    with zipfile.ZipFile(mar) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, changed.get(entry.filename, old.read(entry)))
    return target
