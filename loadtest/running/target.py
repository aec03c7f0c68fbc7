"""The server under test: one that is already running, or one that `marina serve` starts for the test."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from config.errors import InputError, MarinaError
from config.machine import end_with_parent
from config.ports import free_port_base
from config.render import Ports
from config.spec import Spec
from loadtest.measuring import PeakMemory, peak_memory
from loadtest.running.confinement import Confinement, ServerLimits
from loadtest.sending import child_environment

_BEYOND_STARTUP_S = 60
_BEYOND_DRAIN_S = 15
_CONNECT_S = 5.0
# The load goes to the server directly, so these requests must, too, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Target:
    """The server under test: where to send requests, and where to ask which package it serves."""

    url: str
    supervisor: str
    cold_start_s: float | None = None
    """From the start of the command to ready; None for a server that was already running."""
    pid: int | None = None
    exit_code: Callable[[], int | None] = lambda: None
    """Returns the exit code of the process that was started; None while it runs."""
    confined: ServerLimits | None = None
    """The limits of the server; None if it was not limited to the resources of its pod."""

    remote_memory: Callable[[], PeakMemory | None] = lambda: None
    """Returns the peak memory of a server in a cluster; None if it is unknown."""

    @property
    def memory(self) -> PeakMemory | None:
        """The peak memory so far; None if it is unknown."""
        return self.remote_memory() if self.pid is None else peak_memory(self.pid)


def existing_server(url: str, supervisor: str | None = None) -> Target:
    """The server at `url`; its supervisor is ten ports above, unless given."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise InputError(f"`--url`: got `{url}`, allowed: an address such as `http://localhost:8080`")
    try:
        socket.getaddrinfo(parts.hostname, port)
    except OSError as err:
        raise InputError(f"`--url`: got `{url}`, but `{parts.hostname}` cannot be found: {err.strerror}") from err
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Target(url=url, supervisor=supervisor or f"http://{host}:{Ports(port).supervisor}")


def check_listening(url: str, hint: str) -> None:
    """InputError if nothing accepts connections at `url`."""
    try:
        _connect(url)
    except OSError as err:
        raise InputError(f"`--url`: got `{url}`, but nothing answers there: {err.strerror or err}", hint=hint) from err


def describe_end(server: Target) -> str | None:
    """What is known about a server's death; None if it may still run."""
    code = server.exit_code()
    if code is not None:
        return f"its process ended with code {code}"
    try:
        _connect(server.url)
    except ConnectionRefusedError:
        return f"nothing listens at {server.url} any more"
    except OSError:
        # The server is too busy to accept connections, or temporarily out of reach.
        return None
    return None


def _connect(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()


@contextmanager
def started_server(
    spec: Spec, log: Path, *, command: Sequence[str] | None = None, confinement: Confinement | None = None
) -> Iterator[Target]:
    """Starts a server of the spec's package on free ports, waits until it is ready, and stops it at the end.

    Its output goes to `log`.
    """
    base = free_port_base()
    command = [*(command or serve_command(spec.file)), "--port-base", str(base)]
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            # Ctrl-C must end the measurement first; then we stop the server.
            start_new_session=True,
            preexec_fn=partial(_prepare_process, confinement),
        )
    supervisor = f"http://127.0.0.1:{Ports(base).supervisor}"
    try:
        _wait_until_ready(process, supervisor, spec.serving.startup_timeout_s + _BEYOND_STARTUP_S, log)
        cold_start_s = time.monotonic() - begun
        confined = confinement.record if confinement else None
        yield Target(f"http://127.0.0.1:{base}", supervisor, cold_start_s, process.pid, process.poll, confined)
    finally:
        _stop(process, spec.serving.drain_propagation_s + spec.serving.drain_timeout_s + _BEYOND_DRAIN_S)


def serve_command(spec: Path, out: Path | None = None) -> list[str]:
    """The command that serves a spec's package; `out` is the build folder's parent, unless it is the default."""
    where = [] if out is None else ["--out", str(out)]
    return [sys.executable, "-m", "marina", "serve", str(spec), *where]


def served_sha256(supervisor: str, timeout_s: float = 5.0, tls: ssl.SSLContext | None = None) -> str:
    """The hash of the package that a supervisor names; InputError if it names none."""
    page = f"{supervisor.rstrip('/')}/package"
    try:
        return str(json.loads(_read(page, timeout_s, tls))["sha256"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as err:
        raise InputError(f"{page} does not name the package: {getattr(err, 'reason', None) or err}") from err


def metrics(supervisor: str, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0) -> str:
    """The metrics page of a supervisor; OSError if it cannot be read."""
    page = f"{supervisor.rstrip('/')}/metrics"
    try:
        return _read(page, timeout_s, tls).decode(errors="replace")
    except (OSError, http.client.HTTPException) as err:
        raise OSError(f"{page} cannot be read: {getattr(err, 'reason', None) or err}") from err


def await_ready(server: Target, timeout_s: float) -> bool:
    """Waits until a server is ready; returns whether it was within `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not (ready := _is_ready(server.supervisor)) and time.monotonic() < until and server.exit_code() is None:
        time.sleep(0.05)
    return ready


def _read(page: str, timeout_s: float, tls: ssl.SSLContext | None) -> bytes:
    opener = _OPENER
    if tls is not None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    with opener.open(page, timeout=timeout_s) as answer:
        return bytes(answer.read())


def _wait_until_ready(process: subprocess.Popen[bytes], supervisor: str, timeout_s: float, log: Path) -> None:
    until = time.monotonic() + timeout_s
    while not _is_ready(supervisor):
        if process.poll() is not None:
            raise MarinaError(f"the server ended with code {process.returncode} before it was ready: {_last_line(log)}")
        if time.monotonic() > until:
            raise MarinaError(f"the server was not ready after {timeout_s:g} s: {_last_line(log)}", hint=f"less {log}")
        time.sleep(0.05)


def _is_ready(supervisor: str) -> bool:
    try:
        with _OPENER.open(f"{supervisor}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _prepare_process(confinement: Confinement | None) -> None:
    """Prepares the process before it becomes the server: its limits, and that it ends with its parent."""
    if confinement is not None:
        confinement.enter()
    end_with_parent(signal.SIGTERM)
