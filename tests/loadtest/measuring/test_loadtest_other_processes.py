"""Other processes on the server's machine: measured, and named beside a FAIL; two measurements into one folder."""

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
from marina.loadtest.judging import judge
from marina.loadtest.measuring import (
    OtherProcesses,
    OtherProcessesWatch,
)
from marina.loadtest.reporting.junit import verdict_xml
from marina.loadtest.running import measuring_into

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
