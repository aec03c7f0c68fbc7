"""Servers for the e2e tests: the digits model, packaged once and kept while nothing it is made of changes, and a tiny
one that does what it is told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from specs import Packaged, digits_spec
from tiny import make_tiny

from config.spec import Spec
from server import Running, running

Start = Callable[..., Running]


@pytest.fixture(scope="session")
def digits_mar(packaged: Packaged) -> Path:
    """The packaged digits example."""
    folder, package = packaged("fp32")
    return folder / package.mar


@pytest.fixture(scope="session")
def digits_server(digits_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One digits server that no test harms."""
    log = tmp_path_factory.mktemp("digits") / "server.log"
    with running(served_digits(), mar=digits_mar, log=log) as server:
        yield server


@pytest.fixture
def start_tiny(tmp_path: Path) -> Iterator[Start]:
    """Starts tiny servers, ready when it returns unless `wait` is false; `serving` are fields of the spec."""
    contexts = []

    def start_one(*, environment: dict[str, str] | None = None, wait: bool = True, **serving: Any) -> Running:
        folder = tmp_path / f"server-{len(contexts)}"
        spec, mar = make_tiny(folder, **serving)
        context = running(spec, mar=mar, log=folder / "server.log", environment=environment, wait=wait)
        contexts.append(context)
        return context.__enter__()

    yield start_one
    for context in contexts:
        context.__exit__(None, None, None)


def served_digits(**serving: object) -> Spec:
    """The digits spec as tests serve it: nobody has to learn of its end first."""
    return digits_spec({f"serving.{name}": value for name, value in ({"drain_propagation_s": 0} | serving).items()})
