"""Starts an image the way a strict cluster does, without an engine: its own mounts, processes and network, a root that
cannot be written to, a user without rights, and no network but loopback.

Run as a program it is the last step of that: `container.py ROOT UID ENVIRONMENT COMMAND…` inside new namespaces.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_NO_NEW_PRIVILEGES, _DROP_FROM_BOUNDING_SET = 38, 24
_DEVICES = ("full", "null", "random", "urandom", "zero")


@dataclass
class Container:
    """A started image; `pid` is that of its first process as this machine sees it."""

    process: subprocess.Popen[bytes]
    pid: int
    log: Path

    def run(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A program of this machine in the container's network."""
        inside = ["nsenter", "--target", str(self.pid), "--net", "--", *command]
        return subprocess.run(inside, input=stdin, capture_output=True, check=False, timeout=60)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM to its first process; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout=timeout_s)


@contextmanager
def container(
    root: Path, command: Sequence[str], environment: dict[str, str], *, uid: int, log: Path
) -> Iterator[Container]:
    """The command as the first process of a container whose file system is `root`; killed at the end."""
    alone = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
    inside = [sys.executable, __file__, str(root), str(uid), json.dumps(environment), *command]
    with log.open("wb") as stream:
        process = subprocess.Popen([*alone, *inside], stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        first = _first_child(process)
        try:
            yield Container(process, first, log)
        finally:
            # With it all others end. To kill `unshare` is not enough: its child became another user.
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            process.wait()


def _first_child(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        if pids := children.read_text(encoding="utf-8").split():
            return int(pids[0])
    raise AssertionError(f"unshare ended with {process.returncode}")


def _enter(root: Path, uid: int) -> None:
    def mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)

    mount("--make-rprivate", "/")
    mount("--bind", str(root), str(root))
    mount("-t", "proc", "proc", str(root / "proc"))
    mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev,size=1g", "tmpfs", str(root / "tmp"))
    mount("-t", "tmpfs", "-o", "mode=755,nosuid", "tmpfs", str(root / "dev"))
    for device in _DEVICES:
        (root / "dev" / device).touch()
        mount("--bind", f"/dev/{device}", str(root / "dev" / device))
    (root / "dev/shm").mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "tmpfs", str(root / "dev/shm"))
    mount("-o", "remount,bind,ro", str(root))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.chroot(root)
    os.chdir("/")
    system = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        system.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(0)
    os.setuid(uid)
    assert system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0


if __name__ == "__main__":
    _enter(Path(sys.argv[1]), int(sys.argv[2]))
    os.execve(sys.argv[4], sys.argv[4:], json.loads(sys.argv[3]))
