import os
import time
from pathlib import Path

import pytest

from marina.handlers import starting
from marina.server.watching.starting import phases


def write(folder: Path, worker: int, **steps: float) -> None:
    lines = [f"{step} {at:.6f}\n" for step, at in steps.items()]
    (folder / f"start-{worker}").write_text("".join(lines), encoding="utf-8")


def test_the_phases_are_those_of_the_slowest_worker(tmp_path: Path) -> None:
    now = time.monotonic()
    write(tmp_path, 1, begun=now + 3, imports=now + 4, load=now + 5, warm=now + 6)
    write(tmp_path, 2, begun=now + 3, imports=now + 5, load=now + 8, warm=now + 12)
    lengths = phases(tmp_path, began=now, java=now + 1, ready=now + 14)
    supervisor = lengths.pop("supervisor")
    assert {name: round(length, 3) for name, length in lengths.items()} == {
        "checks": 1,
        "java": 2,
        "imports": 2,
        "load": 3,
        "warm_up": 4,
        "first_ready": 2,
    }
    assert supervisor > 0
    assert list(lengths)[-1] == "first_ready"


def test_what_a_worker_did_not_write_down_is_in_the_phase_after_it(tmp_path: Path) -> None:
    now = time.monotonic()
    write(tmp_path, 1, begun=now + 3, imports=now + 4, load=now + 5)
    (tmp_path / "start-2").write_text("half a li", encoding="utf-8")
    lengths = phases(tmp_path, began=now, java=now + 1, ready=now + 9)
    assert "warm_up" not in lengths
    assert round(lengths["first_ready"], 3) == 4
    alone = phases(tmp_path / "none", began=now, java=now + 1, ready=now + 9)
    assert list(alone) == ["supervisor", "checks", "first_ready"]


def test_a_worker_writes_down_when_it_began_and_what_it_has_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARINA_RUN", str(tmp_path))
    before = time.monotonic()
    starting.reached("imports")
    starting.reached("load")
    steps = dict(line.split() for line in (tmp_path / f"start-{os.getpid()}").read_text(encoding="utf-8").splitlines())
    assert list(steps) == ["begun", "imports", "load"]
    assert float(steps["begun"]) < before <= float(steps["imports"]) <= float(steps["load"]) <= time.monotonic()


def test_a_handler_without_a_server_writes_nothing_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARINA_RUN", raising=False)
    monkeypatch.chdir(tmp_path)
    starting.reached("imports")
    assert list(tmp_path.iterdir()) == []
