"""Two servers that run are compared in turns: one that answers later is FAIL by name, the same one is not."""

import json
from pathlib import Path

import pytest
from loadtest_rig import SPEC, behave, running_server, spinning_generator, write_package

from marina.config.load import parse_spec
from marina.loadtest.comparing import CompareOptions, Comparison, compare
from marina.loadtest.running import TargetOptions

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
# Twelve rounds and no more, each turn as short as shows a median.
SHORT = CompareOptions(rate=60, turn_s=0.5, warmup_s=0.2, max_duration_s=12)


def test_a_later_server_fails_and_the_same_does_not(tmp_path: Path) -> None:
    # Of twelve rounds none may be left out, so requests may be sent as late as a busy machine sends them.
    spec = parse_spec(SPEC.replace("p99_ms: 2000", "p99_ms: 20000"), tmp_path / "spec.yaml", files=False)
    write_package(tmp_path / "build")
    where = TargetOptions(out=tmp_path / "build")

    def compared(old: str, new: str, new_ms: float) -> Comparison:
        behave(old, delay_ms=20)
        behave(new, delay_ms=new_ms)
        return compare(spec, old, SHORT, TargetOptions(out=where.out, url=new), quiet=True)

    with running_server(tmp_path / "old") as old, running_server(tmp_path / "new") as new:
        same, later = compared(old, new, 20), compared(old, new, 80)
    assert same.status != "FAIL"
    assert later.status == "FAIL"
    assert "p50-worse" in [reason.id for reason in later.every_reason()]
    for made in (same, later):
        assert len(made.rounds) == 12
        assert all(each.old.planned == each.new.planned == 30 for each in made.rounds)
        assert all(each.old.sent == each.new.sent == 30 for each in made.rounds)
    assert json.loads((where.out / "compare.json").read_text())["status"] == "FAIL"


def test_a_generator_that_spins_decides_nothing(tmp_path: Path) -> None:
    spec = parse_spec(SPEC.replace("p99_ms: 2000", "p99_ms: 50"), tmp_path / "spec.yaml", files=False)
    write_package(tmp_path / "build")
    few = CompareOptions(rate=20, turn_s=0.25, warmup_s=0.1, max_duration_s=6)
    with (
        running_server(tmp_path / "old") as old,
        running_server(tmp_path / "new") as new,
        spinning_generator(tmp_path),
    ):
        behave(new, delay_ms=80)
        made = compare(spec, old, few, TargetOptions(out=tmp_path / "build", url=new), quiet=True)
    assert made.status == "INVALID"
    assert made.reasons[0].id == "disturbed"


def test_a_comparison_that_takes_long_says_so_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    write_package(tmp_path / "build")
    with running_server(tmp_path / "server") as url:
        for rate in (1, 60):
            brief = CompareOptions(rate=rate, turn_s=0.5, warmup_s=0, max_duration_s=1)
            compare(spec, url, brief, TargetOptions(out=tmp_path / "build", url=url))
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: a PASS takes 10 minutes or more, for 299 requests to each server, at 1 requests/s; "
        "a higher `--rate` shortens it"
    ]
