import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import Start
from load import Load
from running import Running
from specs import ROOT
from tiny import make_tiny
from waiting import ask, eventually, metric

from marina.config.ports import free_port_base
from marina.config.render import Ports

pytestmark = pytest.mark.e2e


def test_one_json_line_a_request_and_nothing_of_its_content(start_tiny: Start) -> None:
    server = start_tiny(log="json", access_log="all")
    url = f"{server.url}/predictions/tiny?name=hunter2"
    for _ in range(5):
        headers = {"X-Note": "hunter2", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, b'{"note": "hunter2"}', headers)) as answer:
            answer.read()
    eventually(lambda: server.log.read_text().count('"logger": "request"') == 5)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    requests = [line for line in lines if line["logger"] == "request"]
    assert len(requests) == 5
    assert {(line["path"], line["code"], line["method"]) for line in requests} == {("/predictions/tiny", 200, "POST")}
    assert "hunter2" not in server.log.read_text()


def test_above_the_rate_only_errors_are_printed(start_tiny: Start) -> None:
    few = {"TEST_CONSTANTS": json.dumps({"marina.server.java.follow.MOST_RPS": 5})}
    server = start_tiny(access_log="auto", environment=few)
    with Load(server.ports.inference, "/predictions/tiny", b"{}", 80) as load:
        eventually(lambda: len(load.sent) >= 240)
        load.finish()
    assert ask(server, b'{"exit": 1}') in (500, 507)
    eventually(lambda: " request POST /predictions/tiny 50" in server.log.read_text())
    # Three seconds and a bit, five of each at most.
    assert server.log.read_text().count(" request POST /predictions/tiny 200") <= 25


@pytest.mark.parametrize("stderr", ["2>&2", "2>&-"], ids=["a pipe that nobody reads", "closed"])
def test_nobody_reading_the_log_costs_no_request_and_no_count(stderr: str, tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path, access_log="all", queue=5000)
    ports = Ports(free_port_base())
    command = [sys.executable, "-m", "marina.server", str(spec.file), "--mar", str(mar), "--port-base", str(ports.base)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {stderr}', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    server = Running(process, spec, ports, tmp_path / "unused.log")
    try:
        eventually(lambda: server.readiness()[0], within_s=60)
        # More lines than a pipe holds.
        with Load(ports.inference, "/predictions/tiny", b"{}", 400, keep=True) as load:
            eventually(lambda: len(load.sent) >= 2000)
            assert set(load.finish()) == {"200"}
        eventually(lambda: metric(server, "inference_request_duration_seconds_count") == len(load.sent))
        assert server.readiness()[0]
    finally:
        assert server.stop() == 0
        process.stderr.close()
