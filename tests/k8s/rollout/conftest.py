"""The cluster that most tests of rollouts need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from k8s_rig import Rig, rig


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    """A fake one of which nothing is special."""
    with rig(tmp_path) as made:
        yield made
