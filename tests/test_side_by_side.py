"""The runner of all tests, on tests that pass and fail as these tests need it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packages import built_once
from side_by_side import ASIDE, FAILURES, Ran, run_all

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# A file remembers that a test ran, so that it can behave otherwise the second time.
REMEMBERS = """
import os, pathlib, pytest
RAN = pathlib.Path(os.environ["RAN"])

def runs(name):
    with (RAN / name).open("a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "one process"), file=file)
    return len((RAN / name).read_text().splitlines())
"""
QUIET = "@pytest.mark.alone\ndef test_quiet(): runs('quiet')\n"
BESIDE = REMEMBERS + "def test_good(): runs('good')\n"
FLAKY = "def test_flaky(): assert runs(__name__) == 2\n"
NO_SERVER = "@pytest.fixture\ndef server(): assert runs('setup') == 2\ndef test_served(server): pass\n"
DIES = "def test_dies():\n    if runs('dies') == 1: os.kill(os.getpid(), 9)\n"
BROKEN = "@pytest.mark.parametrize('text', ['a b', 'c[d]'])\ndef test_broken(text): assert runs('broken') < 0\n"
WAITS = """
@pytest.fixture
def server():
    yield
    runs("stopped")

def test_waits(server):
    runs("waits")
    import time
    time.sleep(120)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ran").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n e2e\n slow\naddopts = -p xdist\n")
    (tmp_path / "tests/conftest.py").write_text(
        "import os\nfrom side_by_side import longest_first, set_aside\n"
        "from side_by_side import pytest_runtest_logreport as pytest_runtest_logreport\n"
        "def pytest_collection_modifyitems(items):\n"
        "    if 'PYTEST_XDIST_WORKER' in os.environ: set_aside(items)\n    longest_first(items)\n"
    )
    return tmp_path


def run_side_by_side(project: Path, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (project / f"tests/test_{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, str(ROOT / "tests/side_by_side.py"), "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        env=environment(project),
        timeout=300,
    )


def environment(project: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", FAILURES, ASIDE))}
    own = {"RAN": str(project / "ran"), "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return inherited | own


def ran(project: Path, name: str) -> list[str]:
    return (project / "ran" / name).read_text().splitlines()


def test_files_share_processes_and_what_fails_once_is_named_and_no_failure(project: Path) -> None:
    files = {"beside": BESIDE + FLAKY + QUIET, "served": REMEMBERS + NO_SERVER, "dies": REMEMBERS + DIES}
    done = run_side_by_side(project, **files)
    assert done.returncode == 0, done.stdout
    assert ran(project, "quiet") == ["one process"]
    assert ran(project, "good")[0].startswith("gw")
    assert ran(project, "test_beside")[1:] == ["one process"]
    _, passed = done.stdout.split("\nfailed beside others, passed alone:\n")
    names = ["tests/test_beside.py::test_flaky", "tests/test_dies.py::test_dies", "tests/test_served.py::test_served"]
    assert sorted(passed.split()) == names
    assert len(ran(project, "good")) == 1


def test_what_fails_alone_is_a_failure(project: Path) -> None:
    done = run_side_by_side(project, beside=BESIDE + FLAKY + BROKEN)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    twice = [f"tests/test_beside.py::test_broken[{text}]" for text in ("a b", "c[d]")]
    assert done.stdout.endswith("\nfailed alone:\n  " + "\n  ".join(twice) + "\n")
    assert "\nfailed beside others, passed alone:\n  tests/test_beside.py::test_flaky\n" in done.stdout
    assert len(ran(project, "broken")) == 4


def test_the_files_of_long_tests_are_the_first_and_stay_as_they_are(project: Path) -> None:
    logs = "def test_logs():\n    with (RAN / 'order').open('a') as file: print(__name__, file=file)\n"
    mark, both = "import pytest\n@pytest.mark.slow\n", "pytestmark = [pytest.mark.e2e, pytest.mark.slow]\n"
    files = {"a": logs, "b": f"{logs}{mark}def test_last(): runs('b')\n", "c": f"{both}{logs}"}
    for name, text in files.items():
        (project / f"tests/test_{name}.py").write_text(REMEMBERS + text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=project, env=environment(project), check=True, stdout=subprocess.DEVNULL)
    assert ran(project, "order") == ["test_c", "test_b", "test_a"]


def test_what_is_set_aside_is_run_where_nothing_else_is_and_may_fail(project: Path) -> None:
    broken = "@pytest.mark.alone\n" + BROKEN
    done = run_side_by_side(project, quiet=REMEMBERS + QUIET + broken)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert (ran(project, "quiet"), len(ran(project, "broken"))) == (["one process"], 2)
    assert "passed alone" not in done.stdout


def test_files_that_cannot_be_imported_are_no_noise(project: Path) -> None:
    done = run_side_by_side(project, beside="import nothing_of_this_name\n")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "once more" not in done.stdout


def test_ctrl_c_ends_everything_after_the_fixtures_were_taken_down(project: Path) -> None:
    (project / "tests/test_waits.py").write_text(REMEMBERS + WAITS)
    command = [sys.executable, str(ROOT / "tests/side_by_side.py"), "-q", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, cwd=project, env=environment(project), start_new_session=True)
    while not ((project / "ran/waits").exists() and ran(project, "waits")):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert ran(project, "stopped") == ran(project, "waits")


@pytest.mark.parametrize("code", [pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED])
def test_the_exit_code_is_pytests(code: int) -> None:
    def run_pytest(arguments: Sequence[str]) -> Ran:
        assert arguments[-1] == "tests/k8s"
        return Ran(code)

    assert run_all(["tests/k8s"], run_pytest) == code


def test_a_failure_without_a_name_is_one() -> None:
    assert run_all([], lambda _: Ran(pytest.ExitCode.TESTS_FAILED)) == pytest.ExitCode.TESTS_FAILED


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
