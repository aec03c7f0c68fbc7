import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tools import skip_unless_required

from server.java import listener as listener_module
from server.java.listener import Listener
from server.system.sockets import read_sockets

# Listens, says where, accepts once told to, says what it read, and listens until its stdin ends.
SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    input()
    print(server.accept()[0].recv(10).decode(), flush=True)
    input()
"""
# The same one process further down, as a worker is.
GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SERVER!r}], check=True)"

StartServer = Callable[..., tuple[subprocess.Popen[str], Listener, int]]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    processes = []

    def start_one(code: str = SERVER) -> tuple[subprocess.Popen[str], Listener, int]:
        listener = Listener()
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=listener.install,
        )
        processes.append(process)
        listener.lend(process.pid)
        port = int(process.stdout.readline())
        listener.settle(port)
        return process, listener, port

    yield start_one
    for process in processes:
        with process:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_what_waits_is_accepted_and_whoever_comes_later_is_refused_at_once(start_server: StartServer) -> None:
    process, listener, port = start_server()
    if listener.why_not:
        skip_unless_required(f"sockets cannot be lent: {listener.why_not}")
    early = socket.create_connection(("127.0.0.1", port))
    assert read_sockets(port).waiting == 1
    assert listener.turn_away()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert (read_sockets(port).waiting, read_sockets(port).listening) == (1, True)
    early.sendall(b"early")
    tell(process)
    assert process.stdout.readline() == "early\n"
    assert read_sockets(port).waiting == 0
    early.close()


def test_only_the_process_itself_is_lent_sockets(start_server: StartServer) -> None:
    process, listener, port = start_server(GRANDCHILD)
    assert listener.why_not
    assert not listener.turn_away()
    socket.create_connection(("127.0.0.1", port)).sendall(b"late")
    tell(process)
    assert process.stdout.readline() == "late\n"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        pytest.param("_MACHINES", {}, "this kernel cannot", id="another architecture"),
        pytest.param("_OLDEST_KERNEL", (99, 0), "this kernel cannot", id="an older kernel"),
        pytest.param("_NEW_LISTENER", 1 << 30, f"seccomp: {os.strerror(22)}", id="refused by the kernel"),
    ],
)
def test_where_it_cannot_be_done_sockets_are_as_ever(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, name: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(listener_module, name, value)
    process, listener, port = start_server()
    assert listener.why_not == reason
    assert not listener.turn_away()
    socket.create_connection(("127.0.0.1", port)).sendall(b"as ever")
    tell(process)
    assert process.stdout.readline() == "as ever\n"


def test_lent_socket_is_as_it_was_asked_for(start_server: StartServer) -> None:
    check = """
import os, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.SOCK_DGRAM):
    one = socket.socket(socket.AF_INET6, kind)
    assert os.get_blocking(one.fileno()) == (not kind & socket.SOCK_NONBLOCK)
    assert not os.get_inheritable(one.fileno())
    assert (one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), one.family) == (kind & 0xF, socket.AF_INET6)
"""
    process, _, _ = start_server(check + SERVER)
    assert process.poll() is None
