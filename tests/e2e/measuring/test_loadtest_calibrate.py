import json
import os
from pathlib import Path

import pytest
from loadtest_rig import SPEC, behave, command, running_server, write_package

from marina.config.load import parse_spec
from marina.loadtest.calibrating.calibration import CalibrateOptions, calibrate, evidence_text
from marina.loadtest.measuring import figure
from marina.loadtest.running import TargetOptions

pytestmark = pytest.mark.e2e


def test_the_knee_of_a_server_is_found_and_recorded(tmp_path: Path) -> None:
    out = tmp_path / "build"
    sha256 = write_package(out)
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    with running_server(tmp_path / "server") as url:
        behave(url, capacity=1200)
        options = CalibrateOptions(first=900, trial_s=1, warmup_s=0.3, arrivals="constant", tolerance=0.2)
        evidence = calibrate(spec, options, TargetOptions(out=out, url=url))
    assert evidence.knee is not None
    assert 100 < evidence.knee.rps <= 1300
    assert evidence.at_70_percent is not None
    assert evidence.at_70_percent.rate < evidence.knee.rps
    assert evidence_text(evidence).startswith(f"knee: {evidence.status} {figure(evidence.knee.rps)} requests/s")
    data = json.loads((out / "evidence.json").read_text())
    assert (data["schema"], data["package"]) == ("marina.evidence/1", sha256)
    assert {trial["status"] for trial in data["trials"]} >= {"PASS", "FAIL"}
    assert (out / "evidence.html").exists()


def test_cold_start_and_memory_are_those_of_the_server_it_started(tmp_path: Path) -> None:
    out = tmp_path / "build"
    where = TargetOptions(out=out, command=command(write_package(out)))
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    # There is no time for a single run, so the search ends at once, without a knee.
    options = CalibrateOptions(first=10, max_duration_s=1)
    evidence = calibrate(spec, options, where)
    assert evidence.server is not None
    assert evidence.server.cores == min(2, len(os.sched_getaffinity(0)))
    assert evidence.cold_start_s is not None
    assert evidence.cold_start_s > 0
    assert evidence.memory is not None
    assert evidence.memory.supervisor_bytes > 1_000_000
