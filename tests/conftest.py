"""What holds in every process of the tests."""

import gc
import os
import signal
from collections.abc import Iterator

import compiler
import hypothesis
import pytest
import setuptools  # noqa: F401  Inductor fails where Python's own distutils was imported before it
import warm_python
from packages import COMPILED, packaged_digits
from side_by_side import pytest_addoption as pytest_addoption
from side_by_side import pytest_runtestloop as pytest_runtestloop
from specs import Packaged

from marina.handlers import torchvision_import

# A shell ignores it for what it runs in the background, and so would every server that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Every process that a test starts would compile our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Before torch is imported: its threads wait asleep for each other. Awake they take the cores from the other tests, and
# that was more than half of what a small model's answers took.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What one test has compiled, no other compiles again, and nothing of the user's own cache is in it.
os.environ.setdefault("MARINA_CACHE", str(COMPILED))
compiler.put_on_path()

# The tests themselves run side by side, and each further compiler would import torch once more.
os.environ.setdefault("MARINA_JOBS", "1")


# Tests import it beside a torch that it was not built for.
torchvision_import.install()

# What is imported and collected stays to the end: looking through it for garbage took a fifth of the time.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on, what tests make is garbage at some time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)
    if session.config.getoption("processes"):
        warm_python.start()


@pytest.fixture(autouse=True, scope="session")
def warm_rehearsals() -> Iterator[None]:
    """Where tests run side by side, the rehearsals of models that they package start from a Python that has torch."""
    with pytest.MonkeyPatch.context() as patch:
        if warm_python.VARIABLE in os.environ:
            patch.setattr("marina.archiver.rehearsal._run_rehearsal", warm_python.run_rehearsal)
        yield


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """A hang-up ends what a test starts, also where the tests run under nohup, which makes their children ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def packaged() -> Packaged:
    """The folder and the record of a variant of the digits example, packaged at its first use."""
    return packaged_digits
