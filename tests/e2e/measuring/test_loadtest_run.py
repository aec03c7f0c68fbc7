import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from loadtest_rig import SPEC, behave, command, running_server, write_package

from marina.config.load import parse_spec
from marina.config.spec import Spec
from marina.loadtest.judging.record import LoadTestOutcome
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest

pytestmark = pytest.mark.e2e

PLAIN_LOCUST = """
from locust import FastHttpUser, constant_throughput, task

class Plain(FastHttpUser):
    wait_time = constant_throughput(20)

    @task
    def predict(self):
        self.client.post("/predictions/digits", data=b"x")
"""


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return parse_spec(SPEC, tmp_path / "spec.yaml", files=False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_package(tmp_path / "build")
    return tmp_path / "build"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """The server, behaving well."""
    behave(server)
    return server


def load(spec: Spec, out: Path, url: str | None, **options: Any) -> LoadTestOutcome:
    given = {"rate": 1000, "duration_s": 1.2, "warmup_s": 0.2} | options
    return run_load_test(spec, RunOptions(**given), TargetOptions(out=out, url=url))


def reasons(outcome: LoadTestOutcome) -> list[str]:
    return [reason.id for reason in outcome.verdict.every_reason()]


def test_a_healthy_server_passes_and_leaves_three_files(spec: Spec, out: Path, url: str) -> None:
    outcome = load(spec, out, url, processes=2, arrivals="poisson")
    assert reasons(outcome) == []
    measurement = outcome.runs[0].measurement
    assert (measurement.good, measurement.warmup, measurement.planned) == (1200, 200, 1200)
    assert len(measurement.generators) == 2
    record = (out / "verdict.json").read_text()
    assert LoadTestOutcome.model_validate_json(record) == outcome
    assert record.count("\n") == 1
    suite = ElementTree.parse(out / "verdict.xml").getroot()
    assert [case.get("name") for case in suite.iter("testcase")] == [
        "p99 at most 2,000 ms",
        "errors at most 1 %",
        "holds 1,000 requests/s",
    ]
    assert "PASS" in (out / "verdict.html").read_text()
    assert sorted(file.name for file in out.iterdir()) == [
        "model.mar",
        "package.json",
        "verdict.html",
        "verdict.json",
        "verdict.xml",
    ]


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        pytest.param({"status": 500, "body": "{}"}, {"http 500": 240}, id="5xx"),
        pytest.param({"body": "{}"}, {"malformed": 240}, id="keys missing"),
        pytest.param({"broken": True}, {"broken": 240}, id="connection ends in the middle"),
        pytest.param({"silent": True}, {"timeout": 240}, id="no answer"),
    ],
)
def test_failures_are_counted_by_name(
    spec: Spec, out: Path, url: str, rules: dict[str, Any], named: dict[str, int]
) -> None:
    behave(url, every=5, **rules)
    outcome = load(with_limit(spec, 400), out, url, warmup_s=0, timeout_s=3 if "silent" in rules else 30)
    assert outcome.runs[0].measurement.errors == named
    assert outcome.verdict.status == "FAIL"
    assert "errors-over" in reasons(outcome)


def test_a_server_that_dies_during_the_run_fails_it(spec: Spec, out: Path, tmp_path: Path) -> None:
    with running_server(tmp_path / "mortal") as mortal:
        behave(mortal, dies_after=600)
        outcome = load(spec, out, mortal, repeat=3)
    (only,) = outcome.runs
    assert (outcome.verdict.status, reasons(outcome)[0]) == ("FAIL", "server-died")
    assert only.measurement.errors["refused"] > 0
    assert only.measurement.sent == only.measurement.finished == 1200


def test_a_full_queue_fails_with_shed_named(spec: Spec, out: Path, url: str) -> None:
    behave(url, capacity=200)
    outcome = load(spec, out, url)
    assert outcome.verdict.status == "FAIL"
    assert "shed" in reasons(outcome)
    assert set(outcome.runs[0].measurement.errors) == {"shed"}
    failures = [case.find("failure") for case in ElementTree.parse(out / "verdict.xml").getroot().iter("testcase")]
    assert "requests were shed" in (failures[1].get("message") or "")  # type: ignore[union-attr]


def test_a_rate_below_what_is_promised_is_said_before_it_is_sent(
    out: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promising = parse_spec(SPEC.replace("slo: {", "slo: {throughput_rps: 2000, "), tmp_path / "spec.yaml", files=False)
    outcome = load(promising, out, url)
    assert reasons(outcome) == ["rate-below-objective"]
    note, *_ = (line for line in capsys.readouterr().err.splitlines() if line.startswith("note: "))
    assert note == ("note: 1,000 requests/s are less than `slo.throughput_rps`, 2,000: the throughput will be INVALID")


def test_a_first_run_of_hours_is_announced(
    spec: Spec, out: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("marina.loadtest.running.session.Session.measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_load_test(spec, RunOptions(rate=0.2), TargetOptions(out=out, url=url))
    note, *_ = (line for line in capsys.readouterr().err.splitlines() if line.startswith("note: "))
    assert note == (
        "note: the first run takes 92 minutes: the verdict needs 1,100 requests, at 0.2 requests/s; "
        "`--duration` shortens it"
    )


def test_another_package_is_invalid(spec: Spec, out: Path, url: str) -> None:
    package = json.loads((out / "package.json").read_text())
    (out / "package.json").write_text(json.dumps(package | {"sha256": "f" * 64}))
    outcome = load(spec, out, url)
    assert (outcome.verdict.status, reasons(outcome)) == ("INVALID", ["package-differs"])
    cases = ElementTree.parse(out / "verdict.xml").getroot().iter("testcase")
    assert [case.find("error").get("type") for case in cases] == ["package-differs"] * 3  # type: ignore[union-attr]


def test_a_package_that_is_replaced_during_the_run_is_invalid(spec: Spec, out: Path, url: str) -> None:
    def replace() -> None:
        while int(urllib.request.urlopen(f"{url}/seen", timeout=60).read()) < 500:
            time.sleep(0.01)
        behave(url, sha256="e" * 64)

    replacing = threading.Thread(target=replace)
    replacing.start()
    outcome = load(spec, out, url)
    replacing.join()
    assert reasons(outcome) == ["package-differs"]


def test_any_package_asks_for_none(spec: Spec, out: Path, url: str) -> None:
    (out / "package.json").unlink()
    named = spec.model_copy(update={"load": spec.load.model_copy(update={"sample": "sample.png"})})
    named._file = spec.file
    (spec.file.parent / "sample.png").write_bytes(b"\x89PNG")
    options = RunOptions(rate=1000, duration_s=1.2, warmup_s=0)
    assert run_load_test(named, options, TargetOptions(out=out, url=url)).verdict.status == "INVALID"
    assert run_load_test(named, options, TargetOptions(out=out, url=url, any_package=True)).verdict.status == "PASS"


def generator_pid() -> int:
    """The generator process that this process started; waits for it."""
    while True:
        for file in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
            for pid in file.read_text().split():
                if "marina.loadtest.sending.sender" in Path(f"/proc/{pid}/cmdline").read_text():
                    return int(pid)


def hold_back_generator(url: str, after: int, seconds: float) -> None:
    pid = generator_pid()
    while int(urllib.request.urlopen(f"{url}/seen", timeout=60).read()) < after:
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def with_limit(spec: Spec, p99_ms: float) -> Spec:
    text = SPEC.replace("p99_ms: 2000", f"p99_ms: {p99_ms}")
    return parse_spec(text, spec.file, files=False)


def test_a_generator_held_back_is_invalid_not_fail(spec: Spec, out: Path, url: str) -> None:
    holder = threading.Thread(target=hold_back_generator, args=(url, 500, 0.5))
    holder.start()
    outcome = load(with_limit(spec, 250), out, url)
    holder.join()
    latency = outcome.verdict.checks[0]
    assert latency.measured is not None
    assert latency.measured > latency.limit
    assert outcome.verdict.status == "INVALID"
    assert "arrivals-late" in reasons(outcome)


def test_the_server_is_started_and_stopped(spec: Spec, out: Path) -> None:
    sha256 = json.loads((out / "package.json").read_text())["sha256"]
    where = TargetOptions(out=out, command=command(sha256))
    outcome = run_load_test(spec, RunOptions(rate=1000, duration_s=1.2, warmup_s=0), where)
    assert outcome.verdict.status == "PASS"
    assert outcome.tested.cold_start_s is not None
    assert (out / "server.log").read_text().splitlines() == ["ready", "terminated"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(outcome.tested.url, timeout=1)


def test_repeats_are_judged_together(spec: Spec, out: Path, url: str) -> None:
    outcome = load(spec, out, url, repeat=2, warmup_s=0)
    assert len(outcome.runs) == 2
    assert outcome.verdict.checks[0].interval is not None


def test_a_frozen_second_is_seen_by_the_open_loop_and_not_by_plain_locust(
    spec: Spec, out: Path, url: str, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN_LOCUST)
    with running_server(tmp_path / "other") as other:
        for each in (url, other):
            behave(each, every=600, freeze_s=1)
        words = [sys.executable, "-m", "locust", "-f", str(plain), "--headless", "--json", "--host", other]
        locust = subprocess.Popen([*words, "-u5", "-r5", "-t20s"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        how = {"rate": 100, "duration_s": 11, "max_duration_s": 11, "warmup_s": 0}
        outcome = load(with_limit(spec, 500), out, url, **how)
        (stats,) = json.loads(locust.communicate(timeout=60)[0])

    shown = outcome.runs[0].response.p99
    assert shown is not None
    assert 700 < shown < 1500
    # One stall is over the limit, and too few to tell how often it comes.
    assert outcome.verdict.checks[0].reasons[0].id == "undecided"

    times = [(float(time), count) for time, count in stats["response_times"].items()]
    total = sum(count for _, count in times)
    assert total > 1000
    assert stats["max_response_time"] > 900
    assert sum(count for time, count in times if time > 500) < 0.01 * total


LOCUST_STATISTICS = """
import sys
from marina.loadtest.sending.sender import SingleProcessLoad
from marina.loadtest.sending import LoadPlan
plan = LoadPlan.model_validate_json(sys.stdin.readline())
load = SingleProcessLoad(plan, lambda *_: None)
heard = []
load.environment.events.request.add_listener(lambda **event: heard.append(event))
measured = load.run()
total = load.environment.stats.total
print(total.num_requests, total.num_failures, len(heard), measured.good, measured.failed)
print(*sorted({str(event["exception"]) for event in heard}))
print(all(not float(time).is_integer() for time in total.response_times))
"""


def test_locusts_own_statistics_and_events_are_right(url: str) -> None:
    behave(url, every=5, status=500, body="{}")
    plan = LoadPlan(
        request=LoadRequest(url=f"{url}/predictions/digits", body=b"YQ==", content_type="image/png"),
        schedule=Schedule(arrivals="constant", rate=100, warmup_s=1, duration_s=1),
        timeout_s=2,
        limit_ms=50,
    )
    words = [sys.executable, "-c", LOCUST_STATISTICS]
    said = subprocess.run(words, input=plan.model_dump_json() + "\n", capture_output=True, text=True, check=True).stdout
    # The window's hundred requests in the statistics, the warm-up's with them among the events.
    assert said.splitlines() == ["100 20 200 80 20", "None http 500", "True"]


INTERRUPTED = """
import sys
from pathlib import Path
from marina.config.load import load_spec
from marina.loadtest.running import RunOptions, run_load_test, verdict_text
from marina.loadtest.running import TargetOptions
spec, out, url, processes = sys.argv[1:]
options = RunOptions(rate=200, duration_s=60, warmup_s=0, repeat=3, processes=int(processes))
print(verdict_text(run_load_test(load_spec(Path(spec), files=False), options, TargetOptions(out=Path(out), url=url))))
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_leaves_a_verdict_on_what_was_measured(out: Path, url: str, tmp_path: Path, processes: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "spec.yaml"), str(out), url, processes]
    loading = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while int(urllib.request.urlopen(f"{url}/seen", timeout=60).read()) < 300:
        assert loading.poll() is None
        time.sleep(0.01)
    # As a terminal does it: to the whole group.
    os.killpg(loading.pid, signal.SIGINT)
    said = loading.communicate(timeout=30)[0]
    assert said.startswith("slo: INVALID")
    assert "cut-short: the run ended after" in said
    assert len(json.loads((out / "verdict.json").read_text())["runs"]) == 1
