"""The runner of all tests, on tests that pass and fail as these tests need it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from packages import built_once

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# A file remembers that a test ran, and in which process, so that it can behave otherwise the second time.
REMEMBERS = """
import os, pathlib, pytest
RAN = pathlib.Path(os.environ["RAN"])

def runs(name):
    with (RAN / name).open("a") as file:
        print(os.getpid(), file=file)
    return len((RAN / name).read_text().splitlines())
"""
QUIET = "@pytest.mark.alone\ndef test_quiet(): runs('quiet')\n"
BESIDE = REMEMBERS + "def test_good(): runs('good')\n"
FLAKY = "def test_flaky(): assert runs(__name__) == 2, 'not the first time'\n"
NO_SERVER = "@pytest.fixture\ndef server(): assert runs('setup') == 2\ndef test_served(server): pass\n"
WARNS = "import warnings\nwarnings.warn('while it is read')\n"
DIES = "def test_dies():\n    if runs('dies') == 1: os.kill(os.getpid(), 9)\ndef test_after(): runs('after')\n"
BROKEN = "@pytest.mark.parametrize('text', ['a b', 'c[d]'])\ndef test_broken(text): assert runs('broken') < 0\n"
WAITS = """
@pytest.fixture
def server():
    yield
    runs("stopped")

def test_waits(server):
    import time
    runs("waits")
    while not (RAN / "go").exists():
        time.sleep(0.01)
"""
# Each of two files waits until the other one has begun.
MEETS = "def test_meets():\n    runs('met')\n    while len((RAN / 'met').read_text().splitlines()) < 2: pass\n"
COUNTS = """
@pytest.fixture(scope="session")
def server():
    runs("started")

@pytest.mark.parametrize("number", range(2))
def test_asks(server, number, tmp_path):
    runs("asked")
    print("what a test prints")
    import warnings
    warnings.warn("an old way")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ran").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n e2e\n slow\n")
    (tmp_path / "tests/conftest.py").write_text(
        "from side_by_side import pytest_addoption as pytest_addoption\n"
        "from side_by_side import pytest_runtestloop as pytest_runtestloop\n"
    )
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--processes", "2", "-p", "no:cacheprovider", *arguments, "tests"]


def run_side_by_side(project: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (project / f"tests/test_{name}.py").write_text(text)
    return subprocess.run(
        command(*arguments), cwd=project, capture_output=True, text=True, env=environment(project), timeout=300
    )


def environment(project: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    own = {"RAN": str(project / "ran"), "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return inherited | own


def ran(project: Path, name: str) -> list[str]:
    return (project / "ran" / name).read_text().splitlines()


def names_of(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("tests/") and "::" in line)


def test_files_run_at_the_same_time_and_the_tests_of_one_share_what_they_set_up(project: Path) -> None:
    files = {"one": REMEMBERS + MEETS, "two": REMEMBERS + MEETS + COUNTS}
    done = run_side_by_side(project, "-q", **files)
    assert done.returncode == 0, done.stdout
    assert len(set(ran(project, "met"))) == 2
    assert (len(ran(project, "started")), len(ran(project, "asked"))) == (1, 2)
    assert "4 passed, 2 warnings" in done.stdout
    assert "UserWarning: an old way" in done.stdout
    assert "what a test prints" not in done.stdout


def test_what_fails_once_is_named_and_no_failure(project: Path) -> None:
    files = {"beside": BESIDE + FLAKY + QUIET, "served": REMEMBERS + NO_SERVER, "dies": REMEMBERS + WARNS + DIES}
    done = run_side_by_side(project, **files)
    assert done.returncode == 0, done.stdout
    beside, alone = ran(project, "test_beside")
    assert beside == ran(project, "good")[0]
    assert [alone] == ran(project, "quiet")
    assert (len(ran(project, "good")), len(ran(project, "after"))) == (1, 1)
    _, passed = done.stdout.split("failed beside others, passed alone")
    names = ["tests/test_beside.py::test_flaky", "tests/test_dies.py::test_dies", "tests/test_served.py::test_served"]
    assert names_of(passed) == names
    assert "not the first time" in passed
    assert "6 passed, 1 warning" in passed
    assert "failed" not in passed.splitlines()[-1]


def test_what_fails_alone_is_a_failure(project: Path) -> None:
    done = run_side_by_side(project, "-q", beside=BESIDE + FLAKY + BROKEN)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    for text in ("a b", "c[d]"):
        assert done.stdout.count(f"\nFAILED tests/test_beside.py::test_broken[{text}]") == 1, done.stdout
    _, passed = done.stdout.split("failed beside others, passed alone")
    assert names_of(passed) == ["tests/test_beside.py::test_flaky"]
    assert "2 failed, 2 passed" in done.stdout
    assert len(ran(project, "broken")) == 4


def test_one_that_dies_twice_is_a_failure_and_the_others_are_run(project: Path) -> None:
    done = run_side_by_side(project, "-q", dies=REMEMBERS + DIES.replace("== 1", ""))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "the process of this test has died" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_an_error_of_a_plugin_is_shown(project: Path) -> None:
    with (project / "tests/conftest.py").open("a") as file:
        file.write("def pytest_runtest_makereport(): raise KeyError('of a plugin')\n")
    done = run_side_by_side(project, "-q", good=BESIDE)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "KeyError: 'of a plugin'" in done.stdout


def test_a_folder_may_have_hooks_of_its_own(project: Path) -> None:
    (project / "tests/folder").mkdir()
    (project / "tests/folder/conftest.py").write_text("def pytest_runtest_logreport(): pass\n")
    (project / "tests/folder/test_inner.py").write_text("def test_inner(): pass\n")
    done = run_side_by_side(project, "-q", good=BESIDE)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_the_first_failure_ends_it_where_that_was_asked_for(project: Path) -> None:
    done = run_side_by_side(project, "-q", "-x", "--processes", "1", a=BESIDE + BROKEN, b=REMEMBERS + QUIET)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert (len(ran(project, "broken")), (project / "ran/quiet").exists()) == (1, False)
    assert "1 failed, 1 passed" in done.stdout


def test_the_files_of_long_tests_are_the_first_and_stay_as_they_are(project: Path) -> None:
    logs = "def test_logs():\n    with (RAN / 'order').open('a') as file: print(__name__, file=file)\n"
    mark, both = "import pytest\n@pytest.mark.slow\n", "pytestmark = [pytest.mark.e2e, pytest.mark.slow]\n"
    files = {"a": logs, "b": f"{logs}{mark}def test_last(): runs('b')\n", "c": f"{both}{logs}"}
    done = run_side_by_side(project, "--processes", "1", **{name: REMEMBERS + text for name, text in files.items()})
    assert done.returncode == 0
    assert ran(project, "order") == ["test_c", "test_b", "test_a"]


def test_what_is_set_aside_is_run_where_nothing_else_is_and_may_fail(project: Path) -> None:
    broken = "@pytest.mark.alone\n" + BROKEN
    done = run_side_by_side(project, quiet=BESIDE + QUIET + broken)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert (len(ran(project, "quiet")), len(ran(project, "broken"))) == (1, 2)
    assert ran(project, "quiet") != ran(project, "good")
    assert "passed alone" not in done.stdout


def test_files_that_cannot_be_imported_are_no_noise(project: Path) -> None:
    done = run_side_by_side(project, beside="import nothing_of_this_name\n", good=BESIDE)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "nothing_of_this_name" in done.stdout
    assert not (project / "ran/good").exists()


@pytest.mark.parametrize("to_all", [True, False], ids=["from the terminal", "to the first process"])
def test_ctrl_c_ends_everything_after_the_fixtures_were_taken_down(project: Path, to_all: bool) -> None:
    (project / "tests/test_waits.py").write_text(REMEMBERS + WAITS)
    process = subprocess.Popen(command(), cwd=project, env=environment(project), start_new_session=True)
    while not ((project / "ran/waits").exists() and ran(project, "waits")):
        assert process.poll() is None
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert ran(project, "stopped") == ran(project, "waits")


def test_none_goes_on_after_the_first_process_was_killed(project: Path) -> None:
    (project / "tests/test_waits.py").write_text(REMEMBERS + WAITS + "def test_after(): runs('after')\n")
    process = subprocess.Popen(command(), cwd=project, env=environment(project), start_new_session=True)
    while not ((project / "ran/waits").exists() and ran(project, "waits")):
        assert process.poll() is None
    process.kill()
    process.wait(60)
    (project / "ran/go").touch()
    (child,) = map(int, ran(project, "waits"))
    with suppress(psutil.NoSuchProcess):  # nobody may have awaited it
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            pass
    assert ran(project, "stopped") == [str(child)]
    assert not (project / "ran/after").exists()


def test_no_test_at_all_is_said_as_pytest_says_it(project: Path) -> None:
    assert run_side_by_side(project, good=BESIDE, a="").returncode == 0
    assert run_side_by_side(project, "-k", "nothing_of_this_name").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_tests_can_be_interrupted_where_the_shell_ignores_it() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_what_takes_long_is_built_by_one_process_and_awaited_by_the_others(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\nfrom packages import built_once\nhome = pathlib.Path(sys.argv[1])\n"
        "def build(out):\n    out.mkdir()\n    with (home / 'builds').open('a') as file: print(1, file=file)\n"
        "    sys.stdin.readline()\n    (out / 'made').touch()\n"
        "assert (built_once(home / 'kept', build) / 'made').exists()\n"
    )
    path = os.pathsep.join(map(str, (ROOT / "tests", ROOT)))
    command, env = [sys.executable, "-c", code, str(tmp_path)], {**os.environ, "PYTHONPATH": path}
    builders = [subprocess.Popen(command, stdin=subprocess.PIPE, env=env) for _ in range(2)]
    while not (tmp_path / "builds").exists():
        assert {builder.poll() for builder in builders} == {None}
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write(b"\n")
        builder.stdin.close()
    assert [builder.wait(60) for builder in builders] == [0, 0]
    assert (tmp_path / "builds").read_text() == "1\n"


def test_what_could_not_be_built_is_built_by_the_next(tmp_path: Path) -> None:
    def fails(out: Path) -> None:
        out.mkdir()
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        built_once(tmp_path / "kept", fails)
    assert built_once(tmp_path / "kept", Path.mkdir) == tmp_path / "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "kept.lock"]
