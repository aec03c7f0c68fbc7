import os
import signal
import tempfile

import pytest
from conftest import Start
from waiting import ask, eventually, java_pid, worker_pids

from server import Exit
from server.system import identify

pytestmark = pytest.mark.e2e


def test_nothing_is_left_of_a_killed_supervisor_not_even_a_stopped_worker(start_tiny: Start) -> None:
    server = start_tiny()
    (worker,), java = worker_pids(server), java_pid(server)
    os.kill(worker, signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    eventually(lambda: identify(java) is None and identify(worker) is None)


def test_a_temporary_folder_may_have_any_name(start_tiny: Start) -> None:
    # Not below pytest's own: its path is nearly as long as TorchServe's sockets allow.
    with tempfile.TemporaryDirectory(prefix='a "<b>" $${c} ', dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = start_tiny(environment={"TMPDIR": folder})
        assert ask(server, b"{}") == 200
        assert server.stop() == Exit.DRAINED
