"""What would make a verdict lie: a server that answers well only where it counts for nothing, a generator that is held
back, clocks that are set."""

import select
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from loadtest_rig import SPEC, behave, running_server, spinning_generator, write_package

from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.loadtest.judging.record import LoadTestOutcome
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test, target

pytestmark = pytest.mark.e2e
RATE, SECONDS, WARM = 200, 6, 200

# `localhost` is also another address, which comes first.
TWO_ADDRESSES = """
import _socket
native = _socket.getaddrinfo
def both(host, *how, **more):
    return (native("FIRST", *how, **more) if host == "localhost" else []) + native(host, *how, **more)
_socket.getaddrinfo = both
"""

SET_CLOCK = """
import sys, time
if "marina.loadtest.sending.sender" in " ".join(sys.orig_argv):
    true, asked = time.time, []
    def stepping():
        asked.append(None)
        return true() + (3600 if len(asked) % 2 else -3600)
    time.time = stepping
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def verdict(server: str, tmp_path: Path) -> Any:
    """The verdict on the server when it behaves so, with a second of warm-up."""
    write_package(tmp_path / "build")

    def load(rules: dict[str, Any], *, p99_ms: int = 2000, host: str = "127.0.0.1", **options: Any) -> LoadTestOutcome:
        behave(server, **rules)
        spec = parse_spec(SPEC.replace("p99_ms: 2000", f"p99_ms: {p99_ms}"), tmp_path / "spec.yaml", files=False)
        how = {"rate": RATE, "duration_s": SECONDS, "max_duration_s": SECONDS, "warmup_s": 1, "arrivals": "constant"}
        return run_load_test(
            spec,
            RunOptions(**(how | options)),
            TargetOptions(out=tmp_path / "build", url=server.replace("127.0.0.1", host)),
        )

    return load


def reasons(outcome: LoadTestOutcome) -> list[str]:
    return [reason.id for reason in outcome.verdict.every_reason()]


def test_an_answer_that_drips_beyond_the_timeout_is_counted_as_one_that_never_came(verdict: Any) -> None:
    outcome = verdict({"drip_ms": 200}, rate=10, duration_s=2, max_duration_s=2, timeout_s=2.5)
    measured = outcome.runs[0].measurement
    assert measured.errors == {"timeout": 20}
    assert measured.sent == measured.finished == 20
    assert outcome.verdict.status == "FAIL"


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        pytest.param("transfer-encoding: chunked\r\n\r\n-6\r\n", "broken", id="a chunk of negative size"),
        pytest.param("content-length: " + "9" * 5000 + "\r\n\r\n", "broken", id="a length of 5,000 digits"),
        pytest.param("content-length: 9999\r\n\r\n" + "[" * 9999, "malformed", id="JSON too deep to be parsed"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_not_a_request_that_is_lost(verdict: Any, raw: str, error: str) -> None:
    rules = {"raw": f"HTTP/1.1 200 X\r\n{raw}"}
    outcome = verdict(rules, rate=20, duration_s=1, max_duration_s=1, warmup_s=0)
    assert outcome.runs[0].measurement.errors == {error: 20}
    assert outcome.verdict.status == "FAIL"


def test_a_server_that_closes_each_connection_without_a_word_loses_no_request(verdict: Any) -> None:
    measured = verdict({"leaves": True}, rate=20, duration_s=2, max_duration_s=2, warmup_s=0).runs[0].measurement
    assert (measured.good, measured.errors) == (40, {})


@contextmanager
def no_answer(address: tuple[str, int]) -> Iterator[None]:
    """An address at which nobody accepts or refuses a connection, as behind a firewall: its queue is full."""
    with socket.create_server(address, backlog=0), ExitStack() as stack:
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
            if not select.select([], [waiting], [], 0.5)[1]:
                break
        yield


@pytest.mark.parametrize("first", ["::1", "127.0.0.2"], ids=["nobody listens", "nobody answers"])
def test_a_host_with_a_dead_address_is_reached_at_its_other(
    verdict: Any, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TWO_ADDRESSES.replace("FIRST", first))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with no_answer((first, urlsplit(server).port or 0)) if first != "::1" else nullcontext():
        outcome = verdict({}, host="localhost", rate=20, duration_s=1, max_duration_s=1, warmup_s=0)
    assert (outcome.runs[0].measurement.good, outcome.runs[0].measurement.errors) == (20, {})


def test_what_compiles_only_after_the_warm_up_is_in_the_figures(verdict: Any) -> None:
    outcome = verdict({"delay_ms": 3000, "after": WARM, "until": WARM + 300})
    assert outcome.verdict.status != "PASS"
    assert outcome.runs[0].response.p99 >= 3000
    assert outcome.runs[0].measurement.warmup == WARM


def test_a_server_that_goes_over_to_another_models_answers_fails(verdict: Any) -> None:
    outcome = verdict({"body": '{"logits": [0.1, 0.9]}', "after": WARM + RATE * SECONDS // 2})
    assert outcome.runs[0].measurement.errors == {"malformed": RATE * SECONDS // 2}
    assert outcome.verdict.status == "FAIL"
    assert "errors-over" in reasons(outcome)


def test_a_generator_that_is_asked_for_more_than_it_can_send_makes_no_verdict(verdict: Any) -> None:
    outcome = verdict({}, rate=60_000, duration_s=1, max_duration_s=1, warmup_s=0.1)
    assert outcome.verdict.status == "INVALID"
    assert {"generator-saturated", "generator-stalled", "arrivals-late"} & set(reasons(outcome))


def test_a_generator_that_spins_beside_its_work_makes_no_verdict(verdict: Any, tmp_path: Path) -> None:
    (tmp_path / "spins").mkdir()
    with spinning_generator(tmp_path / "spins"):
        outcome = verdict({}, p99_ms=50, rate=30, duration_s=3, max_duration_s=3)
    assert outcome.verdict.status == "INVALID"
    assert {"generator-saturated", "generator-stalled", "arrivals-late"} & set(reasons(outcome))


def is_sender(process: psutil.Process) -> bool:
    # One that has just ended, and that nobody has waited for yet, has no command line.
    with suppress(psutil.Error):
        return "marina.loadtest.sending.sender" in process.cmdline()
    return False


@contextmanager
def halting(url: str) -> Iterator[None]:
    """The generator stands still for 0.3 s, again and again, once it has sent something."""
    over = threading.Event()

    def halt() -> None:
        while not over.wait(0.1):
            senders = [child for child in psutil.Process().children() if is_sender(child)]
            with urllib.request.urlopen(f"{url}/seen", timeout=60) as answer:
                begun = int(answer.read()) > 0
            for sender in senders if begun else ():
                with suppress(psutil.NoSuchProcess):
                    sender.send_signal(signal.SIGSTOP)
                    over.wait(0.3)
                    sender.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=halt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_generator_that_is_stopped_again_and_again_makes_no_verdict(verdict: Any, server: str) -> None:
    with halting(server):
        outcome = verdict({}, p99_ms=200)
    assert outcome.verdict.status == "INVALID"
    assert {"generator-stalled", "arrivals-late"} & set(reasons(outcome))


def test_a_clock_that_is_set_while_a_load_runs_moves_no_figure(
    verdict: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SET_CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured = verdict({}).runs[0].measurement
    assert (measured.good, measured.warmup, measured.planned) == (RATE * SECONDS, WARM, RATE * SECONDS)
    assert measured.ran_s == pytest.approx(SECONDS, rel=0.01)
    assert 0 <= measured.response.min_ms <= measured.response.max_ms < 60_000


@pytest.mark.parametrize(
    "page",
    [b'{"sha256": 5}', b'{"sha256": "\\u001b[31m<b>"}', b'{"sha256": null}', b"[1]", b"[" * 100_000, b"x" * 20_000_000],
    ids=["a number", "any text", "null", "no object", "too deep", "without end"],
)
def test_a_page_without_a_hash_names_no_package(page: bytes) -> None:
    with answering(page) as url, pytest.raises(InputError, match="does not name the package: "):
        target.served_sha256(url)


@contextmanager
def answering(page: bytes) -> Iterator[str]:
    """A server that answers each request with this page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()
