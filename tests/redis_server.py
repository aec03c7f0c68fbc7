"""A real Redis on a port of its own, which a test may end when it likes."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import needs

PASSWORD = "harbour"


@dataclass
class RedisServer:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def pause(self) -> None:
        """It keeps its connections and says nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def redis_server(folder: Path, port: int | None = None) -> Iterator[RedisServer]:
    """One that keeps nothing on disk, asks for a password and listens on loopback alone."""
    needs("redis-server", package="redis-server")
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--requirepass",
        PASSWORD,
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    server = RedisServer(port, process)
    try:
        _await(server)
        yield server
    finally:
        server.go_on()
        server.kill()


def _await(server: RedisServer) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
            return
        except ConnectionRefusedError:
            assert server.process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.02)
