"""A hand on TorchServe's listening socket, so that a stop resets no connection that the kernel has made.

A listener that closes resets every connection in its queue: made, perhaps with a request on it, and not accepted yet.
So when the end comes, the listener is bound to a network device that does not exist. No packet comes from there, so the
kernel refuses every new connection, while those in the queue, and those whose handshake has begun, are unharmed. Once
TorchServe has accepted them all it may close (`server/watching/drain.py`).

That takes a handle of Java's socket, and nobody gets into a process for its sockets, unless he made them. So the
supervisor does: a seccomp filter in Java's process hands each `socket()` for TCP to the supervisor, which makes the
socket, keeps a handle and gives Java another. None of it needs rights; the default profiles of container runtimes allow
it. Where the kernel is older than 5.9, of another architecture, or forbids it, Java makes its own sockets as ever.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

# <linux/prctl.h>, <linux/seccomp.h>, <linux/bpf_common.h>, <asm-generic/socket.h>: the same on both architectures.
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER = 38, 1
# Without the second flag kernels before 5.16 slow down every filtered process, as if the filter were a sandbox.
_NEW_LISTENER, _SPEC_ALLOW = 1 << 3, 1 << 2
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_RECEIVE, _ANSWER, _ADD_FD = 0xC0502100, 0xC0182101, 0x40182103
_GO_ON = 1
_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_SO_BINDTOIFINDEX, _NO_DEVICE = 62, 2**31 - 1
_OLDEST_KERNEL = (5, 9)


@dataclass(frozen=True)
class _Machine:
    """Numbers that differ between architectures."""

    audit: int
    seccomp: int
    socket: int


_MACHINES = {"x86_64": _Machine(0xC000003E, 317, 41), "aarch64": _Machine(0xC00000B7, 277, 198)}


def _ask_about_tcp(machine: _Machine) -> tuple[tuple[int, int, int, int], ...]:
    """Classic BPF, each instruction (code, jump if true, jump if false, operand), over `struct seccomp_data`: the
    system call at 0, the architecture at 4, its first two arguments at 16 and 24."""
    return (
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 0, 8, machine.audit),
        (_LOAD, 0, 0, 0),
        (_IF_EQUAL, 0, 6, machine.socket),
        (_LOAD, 0, 0, 16),
        (_IF_EQUAL, 1, 0, socket.AF_INET),
        (_IF_EQUAL, 0, 3, socket.AF_INET6),
        (_LOAD, 0, 0, 24),
        (_AND, 0, 0, 0xF),
        (_IF_EQUAL, 1, 0, socket.SOCK_STREAM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ASK),
    )


class Listener:
    """Call `install` in the child between fork and exec, then `lend`, `settle` once it listens, `turn_away` at the end.

    None of them fails; `why_not` says what is in the way.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._lending = True
        self._here, self._there = socket.socketpair()
        # Made before the fork: between fork and exec a child may not do much.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._machine = _MACHINES.get(os.uname().machine)
        if self._machine and _kernel() >= _OLDEST_KERNEL:
            filter_ = _ask_about_tcp(self._machine)
            self._code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filter_))
            self._program = struct.pack("HP", len(filter_), ctypes.addressof(self._code))
        else:
            self._machine = None

    def install(self) -> None:
        """In the child: from now on its TCP sockets, and those of what it starts, are asked for."""
        if self._machine is None:
            self._there.send(b"this kernel cannot")
            return
        self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        flags = _NEW_LISTENER | _SPEC_ALLOW
        asked = self._libc.syscall(self._machine.seccomp, _SET_MODE_FILTER, flags, self._program)
        if asked < 0:
            self._there.send(f"seccomp: {os.strerror(ctypes.get_errno())}".encode())
            return
        socket.send_fds(self._there, [b"\0"], [asked])
        os.close(asked)

    def lend(self, java: int) -> None:
        """In the supervisor: answers what the process asks."""
        with self._here, self._there:
            told, handles, _, _ = socket.recv_fds(self._here, 200, 1, socket.MSG_CMSG_CLOEXEC)
        if handles:
            threading.Thread(target=self._run, args=(handles[0], java), name="sockets", daemon=True).start()
        else:
            self.why_not = told.decode()

    def settle(self, port: int) -> None:
        """Keeps the listener of `port`, lets go of the rest, lends no more."""
        with self._lock:
            self._lending = False
            for one in self._sockets:
                if not _listens(one, port):
                    one.close()
            self._sockets = [one for one in self._sockets if one.fileno() >= 0]
            if not self._sockets and self.why_not is None:
                self.why_not = "TorchServe listens on a socket of its own"

    def turn_away(self) -> bool:
        """New connections are refused from now on, those in the queue stay; False where it cannot be done."""
        done = False
        with self._lock:
            while self._sockets:
                # The device is the socket's, not the handle's: it stays when ours is closed.
                with self._sockets.pop() as one, suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_DEVICE)
                    done = True
        return done

    def _run(self, asked: int, java: int) -> None:
        poll = select.poll()
        poll.register(asked, select.POLLIN)
        try:
            # Hung up when the last process with the filter has ended.
            while not any(event & select.POLLHUP for _, event in poll.poll()):
                # Not found: who asked has ended, or a signal made him ask again.
                with suppress(FileNotFoundError):
                    self._answer(asked, java)
        finally:
            # Should this ever fail, who asks gets an error instead of waiting for ever.
            os.close(asked)

    def _answer(self, asked: int, java: int) -> None:
        """One `struct seccomp_notif` in, one `struct seccomp_notif_resp` out."""
        question = bytearray(80)
        fcntl.ioctl(asked, _RECEIVE, question)
        number, thread, family, kind, protocol = struct.unpack_from("=QI20xQQQ", question)
        value, flags = 0, _GO_ON
        # Workers inherit the filter and make their own sockets.
        if self._lending and os.path.exists(f"/proc/{java}/task/{thread}"):
            with suppress(OSError):
                value, flags = self._make(asked, number, family, kind, protocol), 0
        fcntl.ioctl(asked, _ANSWER, bytearray(struct.pack("=QqiI", number, value, 0, flags)))

    def _make(self, asked: int, number: int, family: int, kind: int, protocol: int) -> int:
        """Java's handle of a new socket."""
        made = socket.socket(family, kind & ~socket.SOCK_CLOEXEC, protocol)
        cloexec = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
        given: int = fcntl.ioctl(asked, _ADD_FD, bytearray(struct.pack("=QIIII", number, 0, made.fileno(), 0, cloexec)))
        with self._lock:
            self._sockets.append(made)
        return given


def _listens(one: socket.socket, port: int) -> bool:
    with suppress(OSError):
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and one.getsockname()[1] == port
    return False


def _kernel() -> tuple[int, ...]:
    """Version of the running kernel: major and minor."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, found.groups())) if found else (0, 0)
