"""Ctrl-C, SIGTERM and SIGHUP end whatever measures: no traceback, no process and no half-written file is left."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from loadtest_rig import SPEC, running_server, write_package
from specs import ROOT
from waiting import eventually

from marina.loadtest.sending import running_generator

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
# Of each verb: it would go on for long, and the files that say what it measured until then.
VERBS = {
    "loadtest": (["--rate", "50", "--duration", "600"], {"verdict.json", "verdict.xml", "verdict.html"}),
    "calibrate": (["--first", "50", "--trial", "600"], set()),
    "compare": (["--rate", "50", "--against"], set()),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as url:
        yield url


def seen(url: str) -> int:
    with urllib.request.urlopen(f"{url}/seen", timeout=60) as answer:
        return int(answer.read())


def left(group: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize(
    ("verb", "interrupt"),
    [*((verb, signal.SIGINT) for verb in VERBS), ("loadtest", signal.SIGTERM), ("loadtest", signal.SIGHUP)],
)
def test_ctrl_c_leaves_no_process_and_no_half_of_a_file(
    url: str, tmp_path: Path, verb: str, interrupt: signal.Signals
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    folder = tmp_path / "build/digits"
    write_package(folder)
    options, written = VERBS[verb]
    before, there = seen(url), set(os.listdir(folder))
    words = [verb, str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--url", url, *options]
    words += [url] * (verb == "compare")
    measuring = subprocess.Popen(
        [sys.executable, "-m", "marina", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    eventually(lambda: seen(url) > before + 100 or measuring.poll() is not None)
    # As a terminal does it, and `timeout`: to the whole group.
    os.killpg(measuring.pid, interrupt)
    out, error = measuring.communicate(timeout=600)
    assert (measuring.returncode, "Traceback" in error) == (130, False), error + out
    eventually(lambda: not left(measuring.pid))
    assert set(os.listdir(folder)) - there == written
    for file in folder.glob("verdict.json"):
        assert json.loads(file.read_text())["verdict"]["status"] == "INVALID"


def test_ctrl_c_does_not_reach_a_generator_that_is_still_starting() -> None:
    with running_generator() as generator:
        status = Path(f"/proc/{generator.pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored >> (signal.SIGINT - 1) & 1
