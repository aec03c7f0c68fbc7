import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import Start, packaged_for, served_digits
from load import Load
from running import Running, running
from specs import ROOT
from tiny import make_tiny
from tools import skip_unless_required
from waiting import DIGIT, ask, children, eventually, java_pid, metric, worker_pids

from marina.config.ports import free_port_base
from marina.config.render import Ports
from marina.server.system.exits import Exit
from marina.server.system.processes import identify

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(digits_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A digits server that must come back by itself from what the tests do to it."""
    folder = tmp_path_factory.mktemp("faults")
    # Requests are not put together, so that each worker holds one.
    spec = served_digits(workers=2, max_batch=1, response_timeout_s=5)
    mar = packaged_for(spec, digits_mar, folder / "model.mar")
    with running(spec, mar=mar, log=folder / "server.log") as server:
        yield server


@contextmanager
def asked(server: Running, count: int) -> Iterator[list[Future[int]]]:
    """Requests that workers hold until the block ends: the workers are stopped before they can answer."""
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    workers = worker_pids(server)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(ask, server, DIGIT, "image/png") for _ in range(count)]
        try:
            eventually(lambda: metric(server, "marina_in_flight") == count)
            yield answers
        finally:
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def restarts(server: Running) -> float:
    return metric(server, "marina_worker_restarts_total")


def test_killed_worker_fails_only_what_it_held_and_comes_back(server: Running) -> None:
    restarted = restarts(server)
    with Load(server.ports.inference, "/predictions/digits", DIGIT, 60, "image/png", timeout_s=60) as load:
        eventually(lambda: len(load.sent) > 60)
        killed = time.monotonic()
        os.kill(worker_pids(server)[0], signal.SIGKILL)
        # Asked as a probe asks, but more often; the answer must be there within a second of the kill.
        while server.readiness()[0]:
            assert time.monotonic() - killed < 1
        assert time.monotonic() - killed < 1
        missing = server.readiness()[1]["missing"]
        server.wait_ready(180)
        sent = len(load.sent)
        eventually(lambda: len(load.sent) > sent + 60)
        outcomes = load.finish()
    assert re.search(r"worker 900\d: died \d+ s ago", missing[0])
    # 507 when TorchServe saw the exit code of a SIGKILL, which it takes for the out-of-memory killer's.
    # 503 when the worker was collecting a batch: TorchServe forgets those, and the door notices after some seconds.
    assert set(outcomes) <= {"200", "500", "503", "507"}
    failed = [request.began for request in load.sent if request.outcome != "200"]
    assert len(failed) <= server.spec.max_batch
    assert all(abs(began - killed) < 1 for began in failed)
    eventually(lambda: restarts(server) == restarted + 1)
    assert metric(server, "marina_ready") == 1


def test_a_request_that_waits_for_a_batch_is_answered_if_the_worker_of_that_batch_dies(start_tiny: Start) -> None:
    # The worker collects a batch all the time, so TorchServe has taken the request out of its queue when it dies.
    server = start_tiny(max_batch=8, max_batch_delay_ms=8000, p99_ms=9000)
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        answer = pool.submit(ask, server, b"{}")
        eventually(lambda: metric(server, "marina_in_flight") == 1)
        os.kill(worker_pids(server)[0], signal.SIGKILL)
        assert time.monotonic() - began < 8
        assert answer.result() == 503
    assert server.stop() == Exit.DRAINED


def test_exactly_the_request_of_the_killed_worker_fails(server: Running) -> None:
    restarted = restarts(server)
    with asked(server, 2) as answers:
        os.kill(worker_pids(server)[0], signal.SIGKILL)
    assert sorted(answer.result() for answer in answers) in ([200, 500], [200, 507])
    # It may be ready still when it has not seen yet that the worker is gone.
    eventually(lambda: restarts(server) == restarted + 1)
    server.wait_ready(180)


def test_hung_worker_is_replaced_after_its_response_timeout(server: Running) -> None:
    # The access log is read in its order: once this is counted, so is every failure before it.
    assert ask(server, DIGIT, "text/plain") == 415
    eventually(lambda: metric(server, "inference_request_duration_seconds_count", code="415") == 1)
    before, restarted = worker_pids(server), restarts(server)
    failed = metric(server, "inference_request_duration_seconds_count", code="500")
    with asked(server, 2) as answers:
        statuses = sorted(answer.result() for answer in answers)
        # On a slow machine one of them may have waited for a worker, and then for the one that came instead.
        assert statuses in ([500, 500], [200, 500])
        # Each that did not answer is ended; while it still is, its process is one of the server's.
        eventually(lambda: len(set(before) - set(worker_pids(server))) >= statuses.count(500))
        # The other one, where nothing was asked of it, is continued at the end, or was replaced as well: for that it
        # does not answer the supervisor either.
    server.wait_ready(180)
    eventually(lambda: restarts(server) == restarted + len(set(before) - set(worker_pids(server))))
    # The access log is read beside the answers.
    eventually(
        lambda: metric(server, "inference_request_duration_seconds_count", code="500") == failed + statuses.count(500)
    )
    assert ask(server, DIGIT, "image/png") == 200


def test_metrics_asked_fifty_times_a_second_cost_no_request(server: Running) -> None:
    statuses: list[int] = []
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(0.02):
            statuses.append(server.get("/metrics")[0])

    scrapers = [threading.Thread(target=scrape) for _ in range(2)]
    with Load(server.ports.inference, "/predictions/digits", DIGIT, 100, "image/png") as load:
        for scraper in scrapers:
            scraper.start()
        eventually(lambda: len(statuses) > 150 and len(load.sent) > 200)
        outcomes = load.finish()
    stop.set()
    for scraper in scrapers:
        scraper.join()
    assert set(statuses) == {200}
    assert set(outcomes) == {"200"}


def test_killed_java_ends_the_server_and_leaves_nothing(server: Running) -> None:
    # The last test of this server. Workers that wait for a request end with Java by themselves, stopped ones do not.
    with asked(server, 1):
        workers = worker_pids(server)
        run_directory = run_directory_of(java_pid(server))
        assert run_directory.is_dir()
        os.kill(java_pid(server), signal.SIGKILL)
        assert server.process.wait(120) == Exit.JAVA_DIED
        assert [identify(pid) for pid in workers] == [None, None]
    assert "error: TorchServe was killed by SIGKILL" in server.log.read_text()
    assert not run_directory.exists()


def test_a_crash_of_java_is_reported_in_the_log(start_tiny: Start) -> None:
    server = start_tiny()
    os.kill(java_pid(server), signal.SIGSEGV)
    assert server.process.wait(120) == Exit.JAVA_DIED
    log = server.log.read_text()
    assert "# A fatal error has been detected by the Java Runtime Environment:" in log
    assert "S U M M A R Y" in log
    assert "hs_err" not in log
    assert "error: TorchServe was killed by SIGABRT" in log


def test_worker_that_fails_to_load_is_visible_and_recovers(start_digits: Start, digits_mar: Path) -> None:
    name = "model-b1.pt2"
    server = start_digits(wait=False, workers=1, files={name: b"damaged"})
    assert eventually(lambda: server.get("/metrics")[0] and restarts(server), within_s=60) >= 1
    ready, body = server.readiness()
    assert not ready
    assert re.search(r"worker 9000: died \d+ s ago, \d+ restarts", body["missing"][0])
    assert server.get("/live")[0] == 200
    assert "Failed to load model digits, exception " in server.log.read_text()
    unpacked = run_directory_of(java_pid(server)) / "store" / f"{server.spec.name}.mar" / name
    assert unpacked.read_bytes() == b"damaged"
    with zipfile.ZipFile(digits_mar) as archive:
        unpacked.write_bytes(archive.read(name))
    server.wait_ready(120)
    assert ask(server, DIGIT, "image/png") == 200


def test_killed_supervisor_takes_java_along_and_the_next_one_cleans_up(start_tiny: Start) -> None:
    server = start_tiny(response_timeout_s=300)
    threading.Thread(target=ask, args=(server, b'{"hang": true}'), daemon=True).start()
    eventually(lambda: metric(server, "marina_in_flight") == 1)
    java, workers = java_pid(server), worker_pids(server)
    run_directory = run_directory_of(java)
    os.kill(server.process.pid, signal.SIGKILL)
    eventually(lambda: identify(java) is None)
    assert run_directory.is_dir()
    start_tiny()
    assert not run_directory.exists()
    eventually(lambda: [identify(pid) for pid in workers] == [None])


def test_full_disk_while_serving_changes_nothing_for_clients(start_digits: Start, small_disk: Path) -> None:
    server = start_digits(workers=1, environment={"TMPDIR": str(small_disk)})
    fill(small_disk)
    assert [ask(server, DIGIT, "image/png") for _ in range(20)] == [200] * 20
    assert server.readiness()[0]
    # The access log is read beside the answers.
    eventually(lambda: metric(server, "inference_request_duration_seconds_count", code="200") == 20)
    assert server.stop() == Exit.DRAINED


def test_full_disk_before_it_is_ready_ends_nothing(start_tiny: Start, small_disk: Path) -> None:
    server = start_tiny(wait=False, environment={"TMPDIR": str(small_disk), "TINY_LOAD_S": "3"})
    # Its handler is imported, and takes its time to load.
    eventually(lambda: list(small_disk.glob("marina-*/metrics/*.db")))
    fill(small_disk)
    server.wait_ready(60)
    assert server.stop() == Exit.DRAINED


def test_full_disk_and_a_dead_worker_end_nothing_and_it_recovers(start_digits: Start, small_disk: Path) -> None:
    server = start_digits(workers=2, environment={"TMPDIR": str(small_disk)})
    assert [ask(server, DIGIT, "image/png") for _ in range(8)] == [200] * 8
    assert server.readiness()[1]["warnings"] == []
    fill(small_disk)
    os.kill(worker_pids(server)[0], signal.SIGKILL)
    warnings = eventually(lambda: server.readiness()[1]["warnings"])
    assert "MB of disk free" in warnings[0]
    eventually(lambda: not server.readiness()[0])
    # The page takes in the numbers of the dead worker, for which there is no room.
    assert metric(server, "inference_batch_size_sum") >= 8
    assert metric(server, "marina_disk_free_bytes") < 1e6
    assert server.process.poll() is None
    (small_disk / "filler").unlink()
    server.wait_ready(120)
    assert server.readiness()[1]["warnings"] == []
    assert metric(server, "inference_batch_size_sum") >= 8
    assert ask(server, DIGIT, "image/png") == 200


def test_workers_leave_no_files_behind_when_they_die(start_digits: Start) -> None:
    server = start_digits(workers=1)
    for _ in range(2):
        (worker,) = worker_pids(server)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: not server.readiness()[0])
        server.wait_ready(120)
    temporary = run_directory_of(java_pid(server)) / "tmp"
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("aotinductor", "worker"))] == []


def test_disk_too_small_for_the_model_is_said_before_java_is_started(start_digits: Start, small_disk: Path) -> None:
    fill(small_disk)
    server = start_digits(wait=False, environment={"TMPDIR": str(small_disk)})
    assert server.process.wait(120) == 2
    assert re.search(r"error: .*: \d+ MB free, but unpacking model.mar takes \d+ MB", server.log.read_text())


def test_as_pid_one_it_reaps_orphans_and_stops_on_sigterm(tmp_path: Path) -> None:
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        skip_unless_required("a process namespace needs root")
    spec, mar = make_tiny(tmp_path)
    ports, log = Ports(free_port_base()), tmp_path / "server.log"
    command = [sys.executable, "-m", "marina.server", str(spec.file), "--mar", str(mar), "--port-base", str(ports.base)]
    with log.open("wb") as stream:
        process = subprocess.Popen([*namespace, *command], cwd=ROOT, stderr=stream)
    server = Running(process, spec, ports, log)
    try:
        server.wait_ready(180)
        (first,) = children(process.pid)
        assert Path(f"/proc/{first}/status").read_text().split("NSpid:")[1].split()[1] == "1"
        orphan = "nohup sleep 0.3 >/dev/null & echo $!"
        subprocess.run(
            ["nsenter", "-t", str(first), "-p", "-m", "sh", "-c", orphan], stdout=subprocess.DEVNULL, check=True
        )
        eventually(lambda: len(children(first)) == 2)
        eventually(lambda: len(children(first)) == 1)
        os.kill(first, signal.SIGTERM)
        assert process.wait(120) == Exit.DRAINED
    finally:
        process.kill()


def test_mar_that_torchserve_cannot_take_ends_the_server(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path, manifest=False, log="json")
    with running(spec, mar=mar, log=tmp_path / "server.log", wait=False) as server:
        assert server.process.wait(60) == Exit.MODEL_FAILED
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert lines[-1]["message"].startswith("error: TorchServe could not load the MAR")
    (told,) = [line for line in lines if line["message"] == "Failed to load model: tiny.mar"]
    assert "InvalidModelException" in told["trace"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="marina-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        folder.rmdir()
        skip_unless_required("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb") as file:
        while True:
            file.write(b"\0" * 100_000)
    assert shutil.disk_usage(disk).free < 100_000


def run_directory_of(java: int) -> Path:
    environment = Path(f"/proc/{java}/environ").read_bytes().split(b"\0")
    return next(
        Path(entry.removeprefix(b"MARINA_RUN=").decode()) for entry in environment if entry.startswith(b"MARINA_RUN=")
    )


def test_nothing_is_left_of_a_killed_supervisor_not_even_a_stopped_worker(start_tiny: Start) -> None:
    server = start_tiny()
    (worker,), java = worker_pids(server), java_pid(server)
    os.kill(worker, signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    eventually(lambda: identify(java) is None and identify(worker) is None)


def test_a_temporary_folder_may_have_any_name(start_tiny: Start) -> None:
    # Not below pytest's own: its path is nearly as long as TorchServe's sockets allow.
    with tempfile.TemporaryDirectory(prefix='a "<b>" $${c} ', dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = start_tiny(environment={"TMPDIR": folder})
        assert ask(server, b"{}") == 200
        assert server.stop() == Exit.DRAINED
