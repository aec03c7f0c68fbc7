"""`marina drill` against a fake cluster whose pods are real servers, behind a Service that learns late of changes."""

from pathlib import Path

import pytest
from drills import Deployed, deployed
from waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LOAD = ("--yes-break-it", "--rate", "40", "--before", "1s", "--timeout", "6s", "--quiet")


def whole(service: Deployed) -> None:
    eventually(lambda: service.ready() == 2, within_s=300)


def test_no_drill_loses_a_request_of_a_server_that_drains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with deployed(tmp_path, drain_propagation_s=3) as service:
        for kind in ("evict", "shutdown", "rollout"):
            whole(service)
            code = service.drill(kind, *LOAD, "--within", "120s")
            said, record = capsys.readouterr().out, service.record
            assert (code, record["lost"]) == (0, {}), said
            assert record["status"] == "PASS"
            assert record["judged"] > 40
            assert record["broken"]["enough_s"] > record["broken"]["begun_s"]
            assert f"drill {kind}: PASS 0 lost, enough pods after" in said


def test_a_server_that_does_not_wait_for_load_balancers_loses_requests(tmp_path: Path) -> None:
    with deployed(tmp_path, drain_propagation_s=0) as service:
        whole(service)
        assert service.drill("evict", *LOAD, "--within", "120s") == 1
        record = service.record
        assert record["status"] == "FAIL"
        assert sum(record["lost"].values()) > 0
        assert record["checks"][0]["reasons"][0]["id"] == "requests-lost"
