"""A load whose parts are processes that find each other over the network, as pods do."""

import base64
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from loadtest_rig import running_server
from specs import ROOT

from config.errors import InputError
from loadtest.measuring import this_machine
from loadtest.sending import LoadPlan, Request, Schedule, log_lines

pytestmark = pytest.mark.e2e
PARTS = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the leader of three parts wrote, the others having been there before it."""
    folder = tmp_path_factory.mktemp("crew")
    with running_server(folder) as url:
        file = write_plan(folder, url)
        port = free_port()
        command = [sys.executable, "-m", "loadtest.sending.crew", str(file), "--port", str(port), "--part"]
        members = {part: start([*command, str(part)]) for part in (2, 1, 0)}
        said = {part: member.communicate(timeout=120)[0] for part, member in members.items()}
    assert [member.returncode for member in members.values()] == [0] * PARTS
    assert said[1] == said[2] == ""
    return said[0].splitlines()


def write_plan(folder: Path, url: str) -> Path:
    body = base64.b64encode(b"x" * 100)
    request = Request(url=f"{url}/predictions/digits", body=body, content_type="image/png")
    schedule = Schedule(arrivals="constant", rate=90, warmup_s=1, duration_s=2)
    plan = LoadPlan(request=request, schedule=schedule, parts=PARTS, timeout_s=10, limit_ms=2000)
    file = folder / "plan.json"
    file.write_text(plan.model_dump_json(), encoding="utf-8")
    return file


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_the_parts_send_the_schedule_together(log: list[str]) -> None:
    measured, machine = log_lines.record_in(log)
    assert machine == this_machine()
    assert (measured.planned, measured.sent, measured.good, measured.warmup) == (180, 180, 180, 90)
    assert len(measured.generators) == PARTS


def test_every_second_is_said_while_it_runs(log: list[str]) -> None:
    numbers = [said[0] for said in map(log_lines.second_in, log) if said]
    assert numbers[:3] == [1, 2, 3]
    assert sum(said[1].answered for said in map(log_lines.second_in, log) if said) <= 270


def test_no_line_is_longer_than_a_container_log_keeps_whole(log: list[str]) -> None:
    assert max(map(len, log)) < 16 * 1024


def test_a_log_that_lost_a_line_is_no_record(log: list[str]) -> None:
    measured, machine = log_lines.record_in(log)
    pieces = list(log_lines.record_lines(measured.model_copy(update={"seconds": measured.seconds * 200}), machine))
    assert len(pieces) > 1
    with pytest.raises(InputError, match="pieces of its record"):
        log_lines.record_in(pieces[1:])
    with pytest.raises(InputError, match=r"0 of \? pieces"):
        log_lines.record_in(["error: out of memory"])
