"""What `--against` may name, with servers that are started for it: another spec, and a MAR. An address is in
test_compare_real.py."""

import sys
from pathlib import Path

import pytest
from loadtest_rig import SERVER, SPEC, write_package

from marina.config.load import parse_spec
from marina.loadtest.comparing import CompareOptions, Comparison, compare
from marina.loadtest.running import TargetOptions

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
# Twelve rounds and no more.
SHORT = CompareOptions(rate=60, turn_s=0.25, warmup_s=0.1, max_duration_s=6)
COMMAND = [sys.executable, str(SERVER), "unknown"]


def opened_both(made: Comparison, old: str, new: str) -> None:
    """Each side was started from its own package, and measured in every round."""
    assert (made.old.package, made.new.package) == (old, new)
    assert made.old.started
    assert made.new.started
    assert made.old.url != made.new.url
    assert len(made.rounds) == 12
    assert all(turn.sent == turn.planned and turn.cpu_s for each in made.rounds for turn in (each.old, each.new))
    assert not [reason for each in made.rounds for reason in each.left_out if reason.id.startswith("package")]


def test_another_spec_is_served_from_its_own_package(tmp_path: Path) -> None:
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    other = tmp_path / "older.yaml"
    other.write_text(SPEC.replace("name: digits", "name: older").replace("p99_ms: 2000", "p99_ms: 1000"))
    new, old = write_package(tmp_path / "build/digits"), write_package(tmp_path / "build/older", sample=400)
    assert new != old
    made = compare(spec, str(other), SHORT, TargetOptions(out=tmp_path / "build/digits", command=COMMAND), quiet=True)
    opened_both(made, old, new)
    assert made.old.spec == str(other)


def test_a_mar_that_was_kept_is_served_with_the_settings_in_it(tmp_path: Path) -> None:
    spec, out = parse_spec(SPEC, tmp_path / "spec.yaml", files=False), tmp_path / "build/digits"
    new, old = write_package(out), write_package(tmp_path / "kept", sample=400)
    made = compare(spec, str(tmp_path / "kept/model.mar"), SHORT, TargetOptions(out=out, command=COMMAND), quiet=True)
    opened_both(made, old, new)
    assert made.old.spec == str(out / "old/spec.yaml")
