"""Other processes on the server's machine: measured, named beside a FAIL, and what to type then; other measurements."""

import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from loadtest_rig import SPEC
from test_loadtest_report import histogram, outcome
from test_loadtest_report import measured as made
from test_loadtest_slo import OBJECTIVE, measured

import marina
from marina.loadtest.judging import Reason, Verdict, judge
from marina.loadtest.measuring import (
    Measurement,
    OtherProcesses,
    OtherProcessesWatch,
    PackageIdentity,
    ServerReadings,
    Streams,
)
from marina.loadtest.reporting.junit import verdict_xml
from marina.loadtest.running import measuring_into, next_step

BUSY = OtherProcesses(cores=1.5, of=2, processes=(("make", 1.1), ("java", 0.4)))
QUIET = OtherProcesses(cores=0.1, of=2)
SPIN = "import time\nuntil = time.monotonic() + 100\nwhile time.monotonic() < until: pass"


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True])
def test_other_processes_are_named_but_not_those_of_the_server(
    ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the process might otherwise not be among the few that are named.
    monkeypatch.setattr("marina.loadtest.measuring.machine._MOST_NAMED", 10_000)
    monkeypatch.setattr("marina.loadtest.measuring.machine._LEAST_NAMED_CORES", 0.001)
    program = tmp_path / "spinner"
    program.symlink_to(sys.executable)
    spinning = subprocess.Popen([program, "-c", SPIN])
    try:
        watch = OtherProcessesWatch([spinning.pid] if ours else [])
        while psutil.Process(spinning.pid).cpu_times().user < 0.5:
            time.sleep(0.05)
        watched = watch.end()
    finally:
        spinning.kill()
        spinning.wait()
    assert ("spinner" in dict(watched.processes)) is not ours


def test_the_name_of_a_process_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.loadtest.measuring.machine._LEAST_NAMED_CORES", 0.0)
    monkeypatch.setattr("marina.loadtest.measuring.machine._MOST_NAMED", 10_000)
    program = f"import ctypes\nctypes.CDLL(None).prctl(15, b'odd\\xff', 0, 0, 0)\nprint(flush=True)\n{SPIN}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as spinning:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        named = OtherProcessesWatch([]).end()
        spinning.kill()
    assert "odd?" in dict(named.processes)
    assert str(named).encode()


def test_what_xml_cannot_hold_is_replaced() -> None:
    ended = "its process ended with \x00\x1b[31m\ud800\uffff"
    (failure,) = ElementTree.fromstring(verdict_xml(outcome(made(20, server_end=ended)))).iter("failure")
    assert "its process ended with ��[31m��" in str(failure.text)


def test_junit_names_the_death_of_a_server_that_also_missed_an_objective() -> None:
    answers, end = histogram([20] * 1500), "its process ended with code 1"
    died = made(20, errors={"refused": 500}, response=answers, in_time=1500, server_end=end, others=BUSY)
    failures = list(ElementTree.fromstring(verdict_xml(outcome(died))).iter("failure"))
    assert [failure.get("type") for failure in failures] == ["errors-over", "throughput-not-held"]
    assert all(f"server-died: the server died during the run: {end}" in str(failure.text) for failure in failures)
    assert all("machine-busy: other processes used 1.5 of 2 cores" in str(failure.text) for failure in failures)


def test_a_fail_on_a_busy_machine_names_what_used_it() -> None:
    verdict = judge(measured(*[200.0] * 1000, others=BUSY), OBJECTIVE)
    assert verdict.status == "FAIL"
    assert verdict.reasons[0].id == "machine-busy"
    assert "other processes used 1.5 of 2 cores: make 1.1, java 0.4" in verdict.reasons[0].text


@pytest.mark.parametrize(("latency", "others"), [(20.0, BUSY), (200.0, QUIET), (200.0, None)])
def test_a_pass_and_a_quiet_machine_need_no_excuse(latency: float, others: OtherProcesses | None) -> None:
    verdict = judge(measured(*[latency] * 1000, others=others), OBJECTIVE)
    assert "machine-busy" not in [reason.id for reason in verdict.every_reason()]


RECORDS, URL = Path("build/digits"), ["--url", "http://x:8080"]
LATE, DEAD = made(20, lag=histogram([30] * 2000)), made(20, server_end="its process ended with code 137")
REFUSED = made(20, errors={"http-400": 2000}, in_time=0, response=histogram([]), others=BUSY)
UNKNOWN = made(20, identity=PackageIdentity(wanted="ab", found=None), response=histogram([20] * 500))
CLUSTER, SERVICE = ["--in-cluster", "--one-pod"], ["--in-cluster", "--service", "front", "--context", "my cluster"]


@pytest.mark.parametrize(
    ("run", "where", "step"),
    [
        (made(200), [], "marina calibrate spec.yaml says which rate it holds; `--tune` searches"),
        (
            made(200),
            ["--url", "http://x:8080"],
            "marina calibrate spec.yaml --url http://x:8080 says which rate it holds",
        ),
        (made(200), SERVICE, "marina calibrate spec.yaml --in-cluster --context 'my cluster' says which rate one pod"),
        (made(200, others=BUSY), [], "marina loadtest spec.yaml --rate 200 --warmup 2 when nothing else runs here"),
        (made(200, others=BUSY), CLUSTER, "--in-cluster --one-pod when nothing else runs on the nodes of its pods"),
        (UNKNOWN, URL, "--url http://x:8080 --any-package skips this check; `--pages-url URL` says"),
        (UNKNOWN, CLUSTER, "--in-cluster --one-pod --any-package skips this check"),
        (DEAD, [], "less build/digits/server.log"),
        (REFUSED, [], "less build/digits/server.log"),
        (DEAD, CLUSTER, "marina status spec.yaml"),
        (LATE, [], "--rate 200 --warmup 2 --url URL from another machine than the server's"),
        (LATE, URL, "--rate 200 --warmup 2 --url http://x:8080 from another machine than the server's"),
        (LATE, SERVICE, "--in-cluster --service front --context 'my cluster' --processes 2"),
    ],
)
def test_without_a_pass_the_next_command_for_the_same_server_is_shown(
    run: Measurement, where: list[str], step: str
) -> None:
    assert step in (next_step(outcome(run), RECORDS, where) or "")


@pytest.mark.parametrize("reason", ["settles", "memory-grows", "drift-grows"])
def test_growth_that_a_longer_soak_would_explain_names_that_soak(reason: str) -> None:
    verdict = Verdict(status="FAIL", reasons=(Reason(id=reason, text=""),), checks=())
    grown = outcome(made(20)).model_copy(update={"verdict": verdict})
    assert (
        next_step(grown, RECORDS, URL)
        == "marina loadtest spec.yaml --rate 200 --warmup 2 --url http://x:8080 --soak 20s"
    )


def test_after_too_low_a_rate_the_one_that_is_promised_is_named() -> None:
    verdict = Verdict(status="INVALID", reasons=(Reason(id="rate-below-objective", text=""),), checks=())
    promised = OBJECTIVE.model_copy(update={"throughput_rps": 500})
    low = outcome(made(20)).model_copy(update={"verdict": verdict, "objective": promised})
    assert next_step(low, RECORDS, URL) == "marina loadtest spec.yaml --rate 500 --warmup 2 --url http://x:8080"
    same = low.model_copy(update={"objective": OBJECTIVE.model_copy(update={"throughput_rps": low.load.rate})})
    assert next_step(same, RECORDS, URL) is None


@pytest.mark.parametrize("answers", [10, 2000])
def test_after_a_server_that_runs_elsewhere_died_there_is_nothing_to_load(answers: int) -> None:
    died = outcome(made(200, server_end="nothing listens any more", response=histogram([200] * answers)))
    elsewhere = died.model_copy(update={"tested": died.tested.model_copy(update={"started": False})})
    assert next_step(elsewhere, RECORDS, URL) is None


def test_settings_of_a_language_model_are_not_to_be_searched() -> None:
    times = histogram([20] * 10)
    streams = Streams(first=times, gaps=times, pace=times, met=1, tokens=1, prompt_tokens=1, cached_tokens=0)
    step = next_step(outcome(made(200, streams=streams)), RECORDS)
    assert step == "marina calibrate spec.yaml says which rate it holds"


def test_the_next_command_sends_the_same_load_as_typed() -> None:
    late, slow = outcome(LATE, arrivals="constant"), outcome(made(200), arrivals="constant")
    load = late.load.model_copy(update={"seed": 1_234_567, "warmup_s": 0.5, "timeout_s": 3.0})
    step = next_step(late.model_copy(update={"load": load}), RECORDS, URL) or ""
    assert "--rate 200 --warmup 0.5 --arrivals constant --seed 1234567 --timeout 3 --url http://x:8080 from" in step
    load = load.model_copy(update={"processes": 4})
    step = next_step(slow.model_copy(update={"load": load}), RECORDS, URL) or ""
    sending = "--arrivals constant --seed 1234567 --timeout 3 --url http://x:8080 --processes 4"
    assert step.startswith(f"marina calibrate spec.yaml {sending} says which rate it holds")


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("undecided", "--url http://x:8080 --soak 40"),
        ("too-few-samples", "--url http://x:8080 --soak 6"),
        ("cut-short too-few-samples settles", "--url http://x:8080 --soak 10s"),
        ("rate-below-objective", "--url http://x:8080 --soak 10s"),
        ("arrivals-late", "--url http://x:8080 --soak 10s from another machine than the server's"),
        ("memory-grows", "--url http://x:8080 --soak 20s"),
    ],
)
def test_after_a_soak_the_next_command_is_a_soak(reason: str, step: str) -> None:
    reasons = tuple(Reason(id=each, text="") for each in reason.split())
    verdict = Verdict(status="INVALID", reasons=reasons, checks=())
    soaked = outcome(made(20, vitals=ServerReadings())).model_copy(update={"verdict": verdict})
    assert (next_step(soaked, RECORDS, URL) or "").endswith(step)


def test_if_most_requests_fail_the_run_that_has_enough_answers_is_longer() -> None:
    verdict = Verdict(status="FAIL", reasons=(Reason(id="too-few-samples", text=""),), checks=())
    run = made(20, errors={"http 500": 1500}, response=histogram([20] * 500))
    failed = outcome(run).model_copy(update={"verdict": verdict})
    assert (next_step(failed, RECORDS, URL) or "").endswith("--url http://x:8080 --duration 22")


@pytest.mark.parametrize("reason", ["shed", "ttft-over", "itl-over", "goodput-low"])
def test_what_a_lower_rate_would_help_is_sent_to_a_search_for_the_knee(reason: str) -> None:
    reasons = tuple(Reason(id=each, text="") for each in ("too-few-samples", "errors-over", reason))
    failed = outcome(made(20)).model_copy(update={"verdict": Verdict(status="FAIL", reasons=reasons, checks=())})
    elsewhere = failed.model_copy(update={"tested": failed.tested.model_copy(update={"started": False})})
    assert (next_step(elsewhere, RECORDS, URL) or "").startswith("marina calibrate spec.yaml --url http://x:8080 says")


def test_after_a_pass_there_is_nothing_to_type() -> None:
    assert next_step(outcome(made(20)), RECORDS) is None


def test_a_server_that_answers_nothing_well_is_not_sent_to_a_search_for_its_knee() -> None:
    tried = outcome(made(20, errors={"http 404": 2000}, response=histogram([]), in_time=0))
    assert tried.verdict.status == "FAIL"
    assert next_step(tried, RECORDS) == "less build/digits/server.log"
    elsewhere = tried.model_copy(update={"tested": tried.tested.model_copy(update={"started": False})})
    assert next_step(elsewhere, RECORDS, URL) is None


VERBS = [["loadtest", "--rate", "1"], ["calibrate"], ["compare", "--rate", "1", "--against", "http://127.0.0.1:1"]]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return str(tmp_path / "spec.yaml")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_two_measurements_do_not_write_into_one_folder(
    verb: list[str], spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, folder = [*verb, spec, "--out", str(tmp_path)], tmp_path / "digits"
    with measuring_into(folder):
        assert marina.main(words) == 2
        assert f"error: {folder}: another measurement is running" in capsys.readouterr().err
    assert marina.main(words) == 2
    assert f"{folder / 'package.json'}: nothing was packaged yet" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_sent(
    verb: list[str], spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main([*verb, spec, "--out", spec]) == 2
    assert f"error: `--out`: {spec}/digits: Not a directory\n\nhint: --out DIR" in capsys.readouterr().err
