"""Takes from a process what a pod does not have: a network, files of this machine, and a disk that can be written to.

The kernel does it, by namespaces, where it lets this user. A hook in Python does so as well: it knows who was asked for
what, so that an error can say it; and where the kernel refuses, it is all there is. Needs only the standard library."""

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The files beside the package: what was asked for in vain, and why the kernel does not help.
ASKED, WITHOUT_KERNEL = "asked", "without-kernel"
# A variable that is set where a compiler runs, which may keep a cache of its own anywhere; no pod has one.
COMPILES = "MARINA_COMPILES"
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR, _HERE, _ALL_BELOW, _READ_ONLY = 442, -100, 0x8000, 1
_SET_FLAGS, _UP = 0x8914, 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def isolate(folder: Path, hidden: Sequence[str]) -> None:
    """Isolates this process, which must have one thread, and its children. The package is in `folder`; `hidden` are
    folders of whoever packages it, from which nothing may be read but Python itself."""
    writable = [Path("/tmp"), Path("/dev/shm"), Path(tempfile.gettempdir()), folder.parent]
    writable = [path.resolve() for path in writable if path.is_dir()]
    if os.environ.get(COMPILES):
        writable = [Path("/")]
    try:
        _enter_namespaces(writable)
    except OSError as err:
        (folder.parent / WITHOUT_KERNEL).write_text(str(err.strerror), encoding="utf-8")
    sys.dont_write_bytecode = True
    sys.addaudithook(_Guard(folder.parent, writable, [Path(path).resolve() for path in hidden]))


def leave_network() -> str | None:
    """Leaves this process and its children only the network's loopback; returns why not, if it keeps its network."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "it has several threads"
    try:
        _enter_namespaces([Path("/")])
    except OSError as err:
        return f"namespaces: {err.strerror}"
    return None


class _Guard:
    """Raises what a pod would raise, and notes what was asked for."""

    def __init__(self, beside: Path, writable: Sequence[Path], hidden: Sequence[Path]) -> None:
        variables = ("MARINA_CACHE", "MARINA_REQUIREMENTS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        known = [*(os.environ.get(name) for name in variables), sys.prefix, sys.base_prefix, *sys.path]
        self._file = beside / ASKED
        self._readable = [str(Path(path).resolve()) + "/" for path in known if path]
        self._readable += [f"{beside.resolve()}/", f"{Path(__file__).resolve().parents[1]}/"]
        self._writable = [f"{path}/".replace("//", "/") for path in (*writable, Path("/dev"), Path("/proc"))]
        self._hidden = [f"{path}/" for path in hidden if path != Path("/")]
        self._busy = False

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if self._busy:
            return
        self._busy = True  # what is done here raises events, too
        try:
            if event in ("socket.getaddrinfo", "socket.gethostbyname"):
                self._check_host(given[0], given[1] if len(given) > 1 else None, socket.gaierror(-3, _NO_NAMES))
            elif event == "socket.connect" and isinstance(given[1], tuple):
                unreachable = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
                self._check_host(given[1][0], given[1][1], unreachable)
            elif event == "open" and isinstance(given[0], str | bytes | os.PathLike):
                mode, flags = given[1] or "", given[2] or 0
                self._check_file(os.fsdecode(given[0]), any(one in mode for one in "wax+") or bool(flags & _WRITING))
            elif event == "os.mkdir":
                self._check_file(os.fsdecode(given[0]), True)
        finally:
            self._busy = False

    def _check_host(self, host: Any, port: Any, refusal: OSError) -> None:
        name = os.fsdecode(host) if isinstance(host, str | bytes) else ""
        if name in ("", "localhost", "::1", "0.0.0.0", "::") or name.startswith("127."):
            return
        self._note("host", f"{name}:{port}" if port else name)
        raise refusal

    def _check_file(self, name: str, writes: bool) -> None:
        path = os.path.realpath(name)
        if path.endswith("/__pycache__"):
            return  # the kernel refuses it; nobody needs it
        if writes and not f"{path}/".startswith(tuple(self._writable)):
            self._note("write", path)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        if path.startswith(tuple(self._hidden)) and not path.startswith(tuple(self._readable)):
            if os.path.exists(path):  # else the usual error says so
                self._note("read", path)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _note(self, what: str, name: str) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([what, name]) + "\n")


_NO_NAMES = "Temporary failure in name resolution"


def _enter_namespaces(writable: Sequence[Path]) -> None:
    """Gives this process a network with only its own loopback, and file systems that are read-only but for these
    folders; raises OSError if the kernel does not let it."""
    user, group = os.getuid(), os.getgid()
    try:
        # Without a user namespace, in which root may not read the files of others.
        _call("unshare", _NEW_NETWORK | _NEW_MOUNTS)
    except OSError:
        _call("unshare", _NEW_USER | _NEW_NETWORK | _NEW_MOUNTS)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))
    if Path("/") in writable:
        return
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)
    for path in writable:
        _call("mount", bytes(path), bytes(path), None, _BIND | _RECURSIVE, None)
    _set_attributes(b"/", _READ_ONLY, 0)
    for path in writable:
        _set_attributes(bytes(path), 0, _READ_ONLY)
    os.chdir(os.getcwd())  # into the folder as it is mounted now


def _set_attributes(path: bytes, added: int, removed: int) -> None:
    attributes = struct.pack("4Q", added, removed, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    _call("syscall", ctypes.c_long(_MOUNT_SETATTR), _HERE, path, _ALL_BELOW, attributes, size)


def _call(name: str, *given: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*given) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
