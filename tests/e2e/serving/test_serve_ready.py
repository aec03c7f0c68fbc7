import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from conftest import Start, served_digits
from running import Running, running, start
from tiny import make_tiny
from tools import skip_unless_required
from waiting import DIGIT, ask, eventually, java_pid, metric, worker_pids

from marina.config.ports import bound_socket, free_port_base
from marina.config.render import Ports
from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e


@pytest.fixture
def fresh_digits(digits_mar: Path, tmp_path: Path) -> Running:
    server = start(served_digits(), mar=digits_mar, ports=Ports(free_port_base()), log=tmp_path / "server.log")
    yield server
    server.stop()


def timed(server: Running) -> float:
    begin = time.perf_counter()
    assert ask(server, DIGIT, "image/png") == 200
    return time.perf_counter() - begin


def test_first_request_after_ready_succeeds_and_is_not_slow(fresh_digits: Running) -> None:
    statuses = []
    while not statuses or statuses[-1] != 200:
        statuses.append(fresh_digits.get("/ready")[0])
        assert fresh_digits.process.poll() is None, fresh_digits.tail()
        time.sleep(0.02)
    first = timed(fresh_digits)
    steady = sorted(timed(fresh_digits) for _ in range(500))
    assert set(statuses) <= {0, 503, 200}
    assert statuses.count(503) > 10
    assert first <= 3 * steady[int(0.99 * len(steady))]


def test_a_stopped_torchserve_is_told_by_both_pages_until_it_goes_on(start_tiny: Start) -> None:
    server = start_tiny()
    java = java_pid(server)
    os.kill(java, signal.SIGSTOP)
    try:
        missing = eventually(lambda: server.readiness()[1]["missing"])
        assert missing[0] == "TorchServe: stopped by SIGSTOP, until it gets SIGCONT"
        assert metric(server, "marina_torchserve_answers") == 0
        assert metric(server, "marina_ready") == 0
    finally:
        os.kill(java, signal.SIGCONT)
    server.wait_ready(180)
    eventually(lambda: metric(server, "marina_torchserve_answers") == 1)
    assert ask(server, b"{}") == 200


def test_a_stopped_worker_is_told_without_a_request_until_it_goes_on(start_tiny: Start) -> None:
    server = start_tiny()
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)
    try:
        missing = eventually(lambda: server.readiness()[1]["missing"])
        assert missing == ["worker 9000: stopped by SIGSTOP, until it gets SIGCONT"]
    finally:
        os.kill(worker, signal.SIGCONT)
    server.wait_ready(180)
    assert worker_pids(server) == [worker]


def test_ready_says_what_is_missing_until_it_is_ready(start_tiny: Start) -> None:
    server = start_tiny(wait=False, environment={"TINY_LOAD_S": "1"})
    loading = eventually(lambda: server.readiness()[1])
    assert loading["ready"] is False
    assert loading["state"] == "loading"
    assert loading["missing"]
    server.wait_ready(180)
    assert server.readiness()[1] == {
        "ready": True,
        "state": "ready",
        "missing": [],
        "warnings": [],
        "workers": {"declared": 1, "ready": 1},
    }


@pytest.mark.parametrize("name", ["all", "metrics", "store"])
def test_a_model_may_be_called_as_torchserves_words_and_folders_are(name: str, tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path, name=name, startup_timeout_s=30)
    with running(spec, mar=mar) as server:
        assert server.readiness()[0]


def test_nothing_listens_but_inference_and_the_pages(digits_server: Running) -> None:
    supervisor = psutil.Process(digits_server.process.pid)
    sockets = [each.net_connections("tcp") for each in (supervisor, *supervisor.children(recursive=True))]
    listening = {socket.laddr.port for each in sockets for socket in each if socket.status == psutil.CONN_LISTEN}
    assert listening == set(digits_server.ports.all().values())


def test_a_server_on_ipv6_counts_its_clients_and_not_itself_and_drains(tmp_path: Path) -> None:
    try:
        bound_socket("::1", 0).close()
    except OSError as err:
        skip_unless_required(f"there is no IPv6 here: {err}")
    spec, mar = make_tiny(tmp_path)
    with running(spec, mar=mar, log=tmp_path / "server.log", host="::1") as server:
        assert ask(server, b"{}") == 200
        # The own inferences before it was ready are in Java's log as well.
        eventually(lambda: metric(server, "inference_request_duration_seconds_count", code="200") == 1)
        assert metric(server, "ts_inference_requests_total") == 1
        assert server.stop() == Exit.DRAINED
    log = (tmp_path / "server.log").read_text(encoding="utf-8")
    assert f"at http://[::1]:{server.ports.inference}" in log
    assert log.count("POST /predictions/tiny 200") == 1


def test_curl_line_in_the_log_works(digits_server: Running) -> None:
    # It is ready a moment before it says so.
    told = eventually(lambda: (text := digits_server.log.read_text()).count("curl ") and text)
    steps = rf"marina loading digits 1\.0.*marina warming.*marina ready in \d+\.\d s at {digits_server.url}\n"
    assert re.search(steps, told, re.DOTALL)
    line = re.search(r"curl .*", told)
    assert line
    answer = subprocess.run([*shlex.split(line[0]), "-s", "-f"], capture_output=True, check=True)
    assert b'"top_indices":[3' in answer.stdout.replace(b" ", b"")


def test_package_page_names_what_is_served(digits_server: Running, digits_mar: Path) -> None:
    import hashlib
    import json

    status, body = digits_server.get("/package")
    assert status == 200
    package = json.loads(body)
    assert package["name"] == "digits"
    assert package["sha256"] == hashlib.sha256(digits_mar.read_bytes()).hexdigest()
    status, body = digits_server.get("/latencies")
    counted = json.loads(body)
    assert (status, counted["sha256"]) == (200, package["sha256"])
    assert counted["worker_restarts"] == 0
    assert counted["memory_bytes"] > 50_000_000


def test_two_servers_on_one_machine_do_not_meet(start_tiny: Start) -> None:
    server, other = start_tiny(), start_tiny()
    assert ask(server, b"{}") == ask(other, b"{}") == 200
    assert server.stop() == 0
    assert ask(other, b"{}") == 200
    assert other.readiness()[0]
