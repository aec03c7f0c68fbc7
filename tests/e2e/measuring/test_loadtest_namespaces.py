"""A load from two machines, as far as the network goes: four workers in two network namespaces that a cable joins."""

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from loadtest_rig import SERVER
from specs import ROOT
from tools import needs
from waiting import eventually

from marina.loadtest.judging import Objective, judge
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest, read_record_lines, read_second_line

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PARTS, SERVER_PORT, LEADER_PORT = 4, 8080, 5557
OBJECTIVE = Objective(p99_ms=2000, error_rate=0.01, throughput_rps=None)


@dataclass(frozen=True)
class Place:
    """A network namespace, with its end of the cable."""

    name: str
    address: str

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.name, sys.executable, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Place, Place]]:
    ip = needs("ip", package="iproute2")
    mine = os.getpid()
    near, far = Place(f"near{mine}", "10.77.0.1"), Place(f"far{mine}", "10.77.0.2")
    if subprocess.run([ip, "netns", "add", near.name], capture_output=True).returncode:
        pytest.skip("this machine lets nobody add a network namespace")
    try:
        cable = ["peer", "name", "cable", "netns", far.name]
        subprocess.run([ip, "netns", "add", far.name], check=True)
        subprocess.run([ip, "-n", near.name, "link", "add", "cable", "type", "veth", *cable], check=True)
        for place in (near, far):
            subprocess.run([ip, "-n", place.name, "address", "add", f"{place.address}/24", "dev", "cable"], check=True)
            for device in ("cable", "lo"):
                subprocess.run([ip, "-n", place.name, "link", "set", device, "up"], check=True)
        yield near, far
    finally:
        for place in (near, far):
            subprocess.run([ip, "netns", "delete", place.name], capture_output=True)


@pytest.fixture(scope="module")
def served(places: tuple[Place, Place]) -> Iterator[str]:
    """A server in the near one; yields its address."""
    near, _ = places
    server = near.start(str(SERVER), "ab" * 32, "--port-base", str(SERVER_PORT), "--host", near.address)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield f"http://{near.address}:{SERVER_PORT}"
    server.kill()
    server.communicate()


def pods_of(places: tuple[Place, Place], plan: LoadPlan, file: Path) -> list[subprocess.Popen[str]]:
    """One process a part: the leader and another one near the server, two far from it."""
    near, far = places
    file.write_text(plan.model_dump_json(), encoding="utf-8")
    words = [
        "-m",
        "marina.loadtest.sending.pod",
        str(file),
        "--leader",
        near.address,
        "--port",
        str(LEADER_PORT),
        "--part",
    ]
    return [place.start(*words, str(part)) for part, place in enumerate((near, near, far, far))]


def plan_of(url: str, duration_s: float) -> LoadPlan:
    body = base64.b64encode(b"x" * 100)
    request = LoadRequest(url=f"{url}/predictions/digits", body=body, content_type="image/png")
    schedule = Schedule(arrivals="constant", rate=80, warmup_s=1, duration_s=duration_s)
    return LoadPlan(request=request, schedule=schedule, parts=PARTS, timeout_s=60, limit_ms=2000)


def seen(place: Place, url: str) -> int:
    """How many predictions the server was asked for, as one asks from there."""
    asked = f"import urllib.request; print(int(urllib.request.urlopen('{url}/seen', timeout=60).read()))"
    return int(place.start("-c", asked).communicate(timeout=120)[0])


def test_four_workers_on_two_machines_send_each_request_once(
    places: tuple[Place, Place], served: str, tmp_path: Path
) -> None:
    before = seen(places[1], served)
    pods = pods_of(places, plan_of(served, 3), tmp_path / "plan.json")
    written = [pod.communicate(timeout=180)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * PARTS
    measured, _ = read_record_lines(written[0].splitlines())
    assert (measured.planned, measured.sent, measured.good, measured.warmup) == (240, 240, 240, 80)
    assert len(measured.generators) == PARTS
    assert seen(places[1], served) == before + 320


def test_a_worker_of_the_other_machine_that_is_killed_is_named(
    places: tuple[Place, Place], served: str, tmp_path: Path
) -> None:
    pods = pods_of(places, plan_of(served, 600), tmp_path / "plan.json")
    leader = pods[0].stdout
    assert leader is not None
    lines: list[str] = []
    eventually(lambda: lines.append(leader.readline()) or read_second_line(lines[-1]), within_s=180)
    pods[3].kill()
    lines += leader.read().splitlines()
    for pod in pods:
        pod.communicate(timeout=180)
    measured, _ = read_record_lines(lines)
    assert measured.lost_processes == (f"4 on {socket.gethostname()}",)
    assert len(measured.generators) == PARTS - 1
    verdict = judge(measured, OBJECTIVE)
    assert verdict.status == "INVALID"
    (reason,) = [reason for reason in verdict.reasons if reason.id == "process-lost"]
    assert f"generator process 4 on {socket.gethostname()} ended or stopped answering" in reason.text
