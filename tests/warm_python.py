"""A Python that has imported torch and forks for each rehearsal: the tests package some fifty models, and importing
torch takes each of their rehearsals more than a second. What tests package through the command line is rehearsed as
for users.

    python -P tests/warm_python.py LISTENER     takes orders from this socket; ends with the process that started it
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

# The address of the one that runs, an abstract Unix socket.
VARIABLE = "MARINA_WARM_PYTHON"
SCRIPT = Path(__file__).resolve().parents[1] / "archiver/rehearse.py"
_LARGEST_ORDER = 1 << 18


def start() -> None:
    """Starts it for this process and those that it will fork."""
    # Not above: the Python that is started must not have imported Marina, as a worker has only that of its archive.
    from marina.config.machine import end_with_parent

    os.environ[VARIABLE] = f"marina-warm-python-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{os.environ[VARIABLE]}")
        listener.listen()
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )


def run_rehearsal(
    folder: Path, hidden: list[str], environment: dict[str, str], limit_s: float | None
) -> subprocess.CompletedProcess[str]:
    """Does what a new Python would do with the script and this folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, tempfile.TemporaryFile("w+") as output:
        connection.connect(f"\0{os.environ[VARIABLE]}")
        order = {"folder": str(folder), "hidden": hidden, "environment": environment, "limit_s": limit_s or 0}
        socket.send_fds(connection, [json.dumps(order).encode()], [output.fileno()])
        begun = time.monotonic()
        exit_code = int(connection.recv(16) or -signal.SIGKILL)  # nothing: it was killed
        output.seek(0)
        if limit_s and time.monotonic() - begun >= limit_s:
            raise subprocess.TimeoutExpired([str(SCRIPT)], limit_s, stderr=output.read().encode())
        return subprocess.CompletedProcess([str(SCRIPT), str(folder)], exit_code, "", output.read())


def main(listener: socket.socket) -> None:
    """Imports at the first order what a worker imports, and forks for each."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are forked
    ready = False
    while True:
        connection, _ = listener.accept()
        if not ready:
            finders = sys.meta_path[:]
            runpy.run_path(str(SCRIPT))["PodImportFinder"].install([])
            import torch  # noqa: F401
            from ts.context import Context  # noqa: F401

            # The script replaces Python's own finder, not one that it has put there before.
            sys.meta_path[:] = finders
            ready = True
        if os.fork() == 0:
            listener.close()
            _rehearse(connection)
        connection.close()


def _rehearse(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, (output,), _, _ = socket.recv_fds(connection, _LARGEST_ORDER, 1)
    order = json.loads(text)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [str(SCRIPT), order["folder"], *order["hidden"]]
    signal.setitimer(signal.ITIMER_REAL, order["limit_s"])  # ends it; 0: never
    exit_code = 0
    try:
        runpy.run_path(str(SCRIPT))["main"]()
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(str(exit_code).encode())
    os._exit(exit_code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
