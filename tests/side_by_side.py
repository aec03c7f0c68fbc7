"""All tests in as little time as two cores allow, and a verdict that the machine's noise does not change.

python tests/side_by_side.py [pytest's arguments]

Two processes share the test files. Then the files that are marked `alone`, because a neighbour's load would change what
they measure, run one after another. What failed in either part runs once more with nothing beside it: what passes then
is named and is no failure, what fails twice is one. The exit code is pytest's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PROCESSES = 2
PASSED, FAILED, NOTHING_SELECTED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
# Where a run of pytest writes which of its tests failed.
FAILURES = "MARINA_FAILED_TESTS"

# Runs pytest with arguments: its exit code, and the tests that failed.
RunPytest = Callable[[Sequence[str]], tuple[int, list[str]]]


def run_all(arguments: Sequence[str], run_pytest: RunPytest) -> int:
    """Runs both parts and what failed in them once more; the exit code."""
    beside, failed_beside = run_pytest(["-n", str(PROCESSES), "--dist", "loadfile", "-m", "not alone", *arguments])
    if beside not in (PASSED, FAILED, NOTHING_SELECTED):
        return beside
    alone, failed_alone = run_pytest(["-m", "alone", *arguments])
    if alone not in (PASSED, FAILED, NOTHING_SELECTED):
        return alone
    if beside == alone == NOTHING_SELECTED:
        return NOTHING_SELECTED
    if FAILED not in (beside, alone):
        return PASSED
    return run_again(failed_beside, failed_alone, run_pytest)


def run_again(failed_beside: list[str], failed_alone: list[str], run_pytest: RunPytest) -> int:
    """Runs failed tests once more, with nothing beside them, and says what came of each."""
    failed_once = list(dict.fromkeys(failed_beside + failed_alone))
    if not failed_once:
        print("pytest failed and named no test: see above")
        return FAILED
    print(f"\n{len(failed_once)} failed; once more, with nothing beside them:", flush=True)
    again, failed_twice = run_pytest(failed_once)
    if again not in (PASSED, FAILED):
        return again
    for title, tests in (
        ("failed beside others, passed alone", [test for test in failed_beside if test not in failed_twice]),
        ("failed alone, passed the second time", [test for test in failed_alone if test not in failed_twice]),
        ("failed twice", failed_twice),
    ):
        if tests:
            print(f"{title}:", *tests, sep="\n  ")
    return again


def pytest_in_a_process(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Runs pytest in a process of its own, which Ctrl-C reaches as well: it is awaited while it stops its servers."""
    with tempfile.TemporaryDirectory() as folder:
        given, failures = Path(folder, "arguments"), Path(folder, "failures")
        given.write_text("\n".join(arguments), encoding="utf-8")
        environment = {**os.environ, FAILURES: str(failures)}
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            # In a file, because hundreds of names are too long for a command line.
            code = subprocess.call([sys.executable, "-m", "pytest", f"@{given}"], env=environment)
        finally:
            signal.signal(signal.SIGINT, before)
        return code, failures.read_text(encoding="utf-8").splitlines() if failures.exists() else []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a test that failed; of tests in several processes, the one that hands them out does it."""
    if report.failed and FAILURES in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[FAILURES], "a", encoding="utf-8") as file:
            print(report.nodeid, file=file)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:], pytest_in_a_process))
