"""The load test against the real thing: TorchServe with the digits model, started and stopped for it."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml
from specs import DIGITS, digits_spec

from marina.config.load import load_spec
from marina.config.measured import Reason
from marina.config.spec import Spec
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test

pytestmark = pytest.mark.e2e


@pytest.fixture
def out(digits_mar: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    for name in ("model.mar", "package.json"):
        shutil.copy(digits_mar.with_name(name), folder)
    return folder


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """The digits example, with a limit that no noise of the machine reaches."""
    data = digits_spec({"slo.p99_ms": 4000}).model_dump(mode="json", exclude_unset=True)
    for field in ("source", "weights", "labels", "calibration"):
        data["model"][field] = str(DIGITS.parent / data["model"][field])
    data["load"]["sample"] = str(DIGITS.parent / data["load"]["sample"])
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(data))
    return load_spec(file)


def test_a_real_server_is_started_identified_loaded_and_stopped(spec: Spec, out: Path) -> None:
    command = [sys.executable, "-m", "marina.server", str(spec.file), "--mar", str(out / "model.mar")]
    outcome = run_load_test(
        spec,
        RunOptions(rate=150, duration_s=20, warmup_s=2, arrivals="poisson"),
        TargetOptions(out=out, command=command),
    )
    assert outcome.verdict.every_reason() == list[Reason]()
    assert outcome.verdict.status == "PASS"
    assert outcome.tested.served == outcome.tested.package
    measurement = outcome.runs[0].measurement
    assert (measurement.good, measurement.errors) == (3000, {})
    assert (outcome.tested.cold_start_s or 0) > 0.5
    log = (out / "server.log").read_text()
    assert "every request that was sent before the listener closed is answered" in log
    assert "load balancers" not in log
