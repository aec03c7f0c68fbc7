import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from loadtest_rig import SPEC, behave, running_server, write_package
from waiting import eventually

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    behave(server)
    return server


def locust(
    url: str, folder: Path, *words: str, slo: str = "{p99_ms: 2000, error_rate: 0.01}", text: str = SPEC
) -> tuple[int, str, str]:
    """Runs the locustfile as a user would; exit code, stdout and stderr.

    On a busy machine the users run up to a second less than `-t` says, so tests that need a number of answers ask for
    twice the time.
    """
    (folder / "spec.yaml").write_text(text.replace("{p99_ms: 2000, error_rate: 0.01}", slo))
    write_package(folder / "build")
    command = [
        sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless", "--json",
        "--host", url, "--spec", str(folder / "spec.yaml"), "--out", str(folder / "build"),
    ]  # fmt: skip
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=90, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def test_plain_locust_passes_and_says_that_a_closed_loop_flatters(url: str, tmp_path: Path) -> None:
    # The slash at the end of the address makes no difference.
    code, out, said = locust(f"{url}/", tmp_path, "-u4", "-r4", "-t6s", "--pace", "100")
    assert code == 0, said
    assert "slo: PASS" in said
    assert "closed loop: a user waits for its answer before it sends again" in said
    (stats,) = json.loads(out)
    assert stats["name"] == "/predictions/digits"


def test_its_rounding_is_replaced_and_its_verdict_exact(url: str, tmp_path: Path) -> None:
    behave(url, delay_ms=104)
    code, out, said = locust(
        url, tmp_path, "-u120", "-r100", "-t6s", "--pace", "5", slo="{p99_ms: 104, error_rate: 0.01}"
    )
    assert code == 1, said
    assert "p99-over" in said
    (stats,) = json.loads(out)
    # Locust itself would have made 100 or 110 of every time between 95 and 115 ms.
    assert any(not float(time).is_integer() for time in stats["response_times"])


def test_errors_fail_it_by_name(url: str, tmp_path: Path) -> None:
    behave(url, every=4, status=503, body="Model has no worker to serve inference request")
    code, _, said = locust(url, tmp_path, "-u4", "-r4", "-t6s", "--pace", "100")
    assert code == 1, said
    assert "shed:" in said


def test_a_wrong_spec_is_no_fail(url: str, tmp_path: Path) -> None:
    code, _, printed = locust(url, tmp_path, "-u1", "-t1s", slo="{p99_ms: soon}")
    assert (code, "error: " in printed, "`slo.p99_ms`" in printed) == (2, True, True)


TIMEOUTS = """
import json
from locust.env import Environment
from marina.config.measured import Objective
from marina.loadtest.closed_loop import ClosedLoop
environment = Environment()
loop = ClosedLoop(environment, Objective(p99_ms=50, error_rate=0.01, throughput_rps=None))
loop.attach()
for exception in (None, *map(Exception, ("timeout", "timeout", "http 500", "limited"))):
    environment.events.request.fire(
        request_type="POST", name="m", response_time=9000 if exception else 10, response_length=0, exception=exception
    )
measured = loop.measurement()
counted = (measured.sent, measured.good, measured.error_rate, measured.response.max_ms, measured.in_time)
print(json.dumps([*counted, measured.limited]))
"""


def test_its_timeouts_count_in_the_percentiles_and_once_among_the_errors() -> None:
    words = [sys.executable, "-c", TIMEOUTS]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == [5, 1, 0.75, 9000, 1, 1]


def test_no_samples_are_invalid(tmp_path: Path) -> None:
    with running_server(tmp_path / "silent") as url:
        behave(url, silent=True)
        code, _, said = locust(url, tmp_path, "-u1", "-r1", "-t1s")
    assert code == 3, said
    assert "no-samples: no request was sent in the measured window" in said


def test_processes_are_merged_exactly(url: str, tmp_path: Path) -> None:
    code, out, said = locust(url, tmp_path, "-u6", "-r6", "-t6s", "--pace", "100", "--processes", "2")
    assert code == 0, said
    # Each worker prints its own statistics first, and they are empty.
    (stats,) = json.loads(out.rpartition("[]\n")[2])
    assert stats["num_requests"] > 1000
    assert f"{stats['num_requests']:,} requests" in said


def test_a_worker_that_was_killed_makes_it_invalid(url: str, tmp_path: Path) -> None:
    def kill() -> None:
        eventually(lambda: int(urllib.request.urlopen(f"{url}/seen", timeout=60).read()) > 50, within_s=60)
        (master,) = (child for child in psutil.Process().children() if "--processes" in child.cmdline())
        # The oldest: a later one may be a program that a worker or the master is about to start.
        min(master.children(), key=psutil.Process.create_time).kill()

    behave(url)  # counts from 0 again
    killer = threading.Thread(target=kill)
    killer.start()
    code, _, said = locust(url, tmp_path, "-u6", "-r6", "-t15s", "--pace", "100", "--processes", "2")
    killer.join()
    assert code == 3, said
    assert f"process-lost: generator process {socket.gethostname()}_" in said


def test_ramp_up_is_left_out_when_asked(url: str, tmp_path: Path) -> None:
    words = ("-u20", "-r10", "-t6s", "--pace", "20", "--reset-stats")
    code, out, said = locust(url, tmp_path, *words)
    (stats,) = json.loads(out)
    assert f"{stats['num_requests']:,} requests" in said
    assert code in (0, 3), said


def test_a_spec_without_objective_is_refused(url: str, tmp_path: Path) -> None:
    code, _, said = locust(url, tmp_path, "-u1", "-r1", "-t1s", slo="null")
    assert code == 2
    assert "`slo`: missing, a verdict needs an objective" in said


def test_a_worker_elsewhere_is_told_by_its_master(url: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py")]
    spec = ["--spec", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build")]
    (tmp_path / "spec.yaml").write_text(SPEC)
    write_package(tmp_path / "build")
    worker = subprocess.Popen(
        [*words, *spec, "--worker", "--master-host", "127.0.0.1", "--master-port", port], stderr=subprocess.DEVNULL
    )
    master = ("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", "1")
    code, out, said = locust(url, tmp_path, *master, "-u4", "-r4", "-t6s", "--pace", "40")
    worker.wait(timeout=30)
    (stats,) = json.loads(out)
    assert f"{stats['num_requests']:,} requests" in said
    # At the pace that only the master was given, which a busy machine keeps too: as fast as it is answered it would be
    # thousands.
    assert 600 < stats["num_requests"] <= 1040
    assert code in (0, 3), said


def test_it_hears_streams_and_judges_their_pieces(url: str, tmp_path: Path) -> None:
    behave(url, first_ms=50, gap_ms=10)
    (tmp_path / "wish.json").write_text('{"prompt": "one", "max_tokens": 4}')
    text = SPEC.replace(
        "torchvision:resnet18, weights: random, handler: image", "hf:./model, handler: text, compile: eager"
    )
    slo = "{ttft_p99_ms: 2000, itl_p99_ms: 1000, goodput: 0.5}\nload: {samples: {wish.json: 1}}"
    words = ("-u8", "-r8", "-t6s", "--processes", "2")
    _, _, said = locust(url, tmp_path, *words, slo=slo, text=text)
    assert "goodput 100 % of 50 %" in said, said
    figures = next(line for line in said.splitlines() if "First text (TTFT)" in line)
    assert float(figures.split("p50 ")[1].split(" ms")[0]) >= 50
