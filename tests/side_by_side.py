"""All tests in as little time as two cores allow, and a verdict that the machine's noise does not change.

python tests/side_by_side.py [pytest's arguments]

Four processes share the test files: most tests that start a server wait longer than they compute. Tests marked `alone`,
whose measurements need the machine, are set aside and run after that, one after another, together with what failed:
what passes then is named and is no failure. The exit code is pytest's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PROCESSES = 4
PASSED, FAILED, NOTHING_SELECTED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
# Where a run of pytest writes which of its tests failed, and which it has set aside.
FAILURES, ASIDE = "MARINA_FAILED_TESTS", "MARINA_TESTS_SET_ASIDE"


@dataclass(frozen=True)
class Ran:
    """One run of pytest: its exit code, the tests that failed, and those that it left for later."""

    code: int
    failed: Sequence[str] = ()
    aside: Sequence[str] = ()


RunPytest = Callable[[Sequence[str]], Ran]


def run_all(arguments: Sequence[str], run_pytest: RunPytest) -> int:
    """Runs the tests side by side, then with nothing beside them those set aside and what failed; the exit code."""
    # The files in the order of `longest_first`, not of how many tests they have.
    beside = run_pytest(["-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder", *arguments])
    if beside.code not in (PASSED, FAILED, NOTHING_SELECTED):
        return beside.code
    failed = list(dict.fromkeys(beside.failed))
    if beside.code == FAILED and not failed:
        print("pytest failed and named no test: see above")
        return FAILED
    if not failed and not beside.aside:
        return beside.code
    print(f"\n{len(beside.aside)} set aside, {len(failed)} failed: now with nothing beside them", flush=True)
    alone = run_pytest([*beside.aside, *failed])
    if alone.code in (PASSED, FAILED):
        for title, tests in (
            ("failed beside others, passed alone", [test for test in failed if test not in alone.failed]),
            ("failed alone", alone.failed),
        ):
            if tests:
                print(f"{title}:", *tests, sep="\n  ")
    return alone.code


def set_aside(items: list[pytest.Item]) -> None:
    """Takes out the tests that are to run alone; each process does, and the first one notes which they are."""
    if ASIDE not in os.environ:  # not run by this program: nobody would run them later
        return
    alone = [item for item in items if item.get_closest_marker("alone")]
    items[:] = [item for item in items if item not in alone]
    if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
        Path(os.environ[ASIDE]).write_text("".join(f"{item.nodeid}\n" for item in alone), encoding="utf-8")


def longest_first(items: list[pytest.Item]) -> None:
    """Puts the files of long tests to the front, so that no process is left with one of them at the end."""
    marked: dict[Path, int] = {}
    for item in items:
        marks = [mark for mark in ("e2e", "slow") if item.get_closest_marker(mark)]
        marked[item.path] = max(marked.get(item.path, 0), len(marks))
    items.sort(key=lambda item: -marked[item.path])


def pytest_in_a_process(arguments: Sequence[str]) -> Ran:
    """Runs pytest in a process of its own, which Ctrl-C reaches as well: it is awaited while it stops its servers."""
    with tempfile.TemporaryDirectory() as folder:
        given, failed, aside = (Path(folder, name) for name in ("arguments", "failed", "aside"))
        given.write_text("\n".join(arguments), encoding="utf-8")
        environment = {**os.environ, FAILURES: str(failed), ASIDE: str(aside)}
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            # In a file, because hundreds of names are too long for a command line.
            code = subprocess.call([sys.executable, "-m", "pytest", f"@{given}"], env=environment)
        finally:
            signal.signal(signal.SIGINT, before)
        return Ran(
            code, *(file.read_text(encoding="utf-8").splitlines() if file.exists() else () for file in (failed, aside))
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a test that failed; of tests in several processes, the one that hands them out does it."""
    if report.failed and FAILURES in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[FAILURES], "a", encoding="utf-8") as file:
            print(report.nodeid, file=file)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:], pytest_in_a_process))
