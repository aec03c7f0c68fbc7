"""All tests in as little time as two cores allow, and a verdict that the machine's noise does not change.

python tests/side_by_side.py [pytest's arguments]

Four processes share the test files: most tests that start a server wait longer than they compute. What fails there runs
once more with nothing beside it: what passes then is named and is no failure, what fails twice is one. The exit code is
pytest's.
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

PROCESSES = 4
PASSED, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
# Where a run of pytest writes which of its tests failed.
FAILURES = "MARINA_FAILED_TESTS"

# Runs pytest with arguments: its exit code, and the tests that failed.
RunPytest = Callable[[Sequence[str]], tuple[int, list[str]]]


def run_all(arguments: Sequence[str], run_pytest: RunPytest) -> int:
    """Runs the tests side by side, and what failed once more with nothing beside it; the exit code."""
    # The files in the order of `longest_first`, not of how many tests they have.
    code, failed = run_pytest(["-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder", *arguments])
    if code != FAILED:
        return code
    if not failed:
        print("pytest failed and named no test: see above")
        return FAILED
    failed = list(dict.fromkeys(failed))
    print(f"\n{len(failed)} failed; once more, with nothing beside them:", flush=True)
    again, failed_twice = run_pytest(failed)
    if again not in (PASSED, FAILED):
        return again
    for title, tests in (
        ("failed beside others, passed alone", [test for test in failed if test not in failed_twice]),
        ("failed twice", failed_twice),
    ):
        if tests:
            print(f"{title}:", *tests, sep="\n  ")
    return again


def longest_first(items: list[pytest.Item]) -> None:
    """Puts the files of long tests to the front, so that no process is left with one of them at the end."""
    marked: dict[Path, int] = {}
    for item in items:
        marks = [mark for mark in ("e2e", "slow") if item.get_closest_marker(mark)]
        marked[item.path] = max(marked.get(item.path, 0), len(marks))
    items.sort(key=lambda item: -marked[item.path])


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
