"""The cluster that most tests of rollouts need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from k8s_rig import Rig, rig


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the cluster as often as its fake controllers do something."""
    for module in ("wait", "load_run", "gate"):
        monkeypatch.setattr(f"marina.k8s.rollout.{module}.POLL_S", 0.03)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    """A fake one of which nothing is special."""
    with rig(tmp_path) as made:
        yield made
