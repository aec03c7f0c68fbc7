"""The server under test: one that is already running, or one that `marina serve` starts for the test."""

import http.client
import json
import math
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from marina.config.errors import InputError, MarinaError
from marina.config.machine import end_with_parent
from marina.config.measured import PeakMemory, ServerLimits
from marina.config.ports import free_port_base
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.loadtest.measuring import peak_memory, this_machine
from marina.loadtest.sending import child_environment

_BEYOND_STARTUP_S = 60
_BEYOND_DRAIN_S = 15
_CONNECT_S = 5.0
_LONGEST_PAGE = 10_000_000


class Confinement(NamedTuple):
    """The function with which the server's process limits itself before it starts, and the record of the limits."""

    enter: Callable[[], None]
    record: ServerLimits


@dataclass(frozen=True)
class Target:
    """The server under test: where to send requests, and where to ask which package it serves."""

    url: str
    supervisor: str
    cold_start_s: float | None = None
    """From the start of the command to ready; None for a server that was already running."""
    start_phases: Mapping[str, float] = field(default_factory=dict)
    """How long each phase of the start took, s, as the server says; empty if it does not."""
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


def existing_server(url: str, supervisor: str | None = None, option: str = "--url") -> Target:
    """The server at `url`; its supervisor is ten ports above, unless given."""
    parts, port = _address(url, option)
    if supervisor is not None:
        _address(supervisor, "--pages-url")
    try:
        socket.getaddrinfo(parts.hostname, port)
    except (OSError, UnicodeError) as err:
        reason = getattr(err, "strerror", err)
        raise InputError(f"`{option}`: got `{url}`, but `{parts.hostname}` cannot be found: {reason}") from err
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    # Its scheme is in small letters now.
    return Target(url=parts.geturl(), supervisor=supervisor or f"http://{host}:{Ports(port).supervisor}")


def _address(url: str, option: str) -> tuple[SplitResult, int]:
    """The parts of an address and its port; InputError for anything that no path can follow."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    whole = url.isprintable() and not {" ", "?", "#", "@"} & set(url) and "/predictions/" not in f"{parts.path}/"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or not whole:
        # A password in it must not be shown.
        text = f"`{option}`: got `{re.sub('//.*@', '//…@', url)}`, allowed: an address such as `http://localhost:8080`"
        hint = "for `loadtest` and `calibrate`, --header 'Authorization: Bearer $TOKEN'" if "@" in url else None
        raise InputError(text, hint=hint)
    return parts, port


def check_listening(url: str, hint: str, tls: ssl.SSLContext | None = None, option: str = "--url") -> None:
    """InputError if nothing accepts connections at `url`, or it is https and its certificate is not trusted."""
    try:
        connection = _connect(url)
    except OSError as err:
        text = f"`{option}`: got `{url}`, but nothing answers there: {err.strerror or err}"
        raise InputError(text, hint=hint) from err
    with connection:
        if not url.startswith("https:"):
            return
        text = f"`{option}`: got `{url}`, but no TLS connection can be made"
        context = tls or ssl.create_default_context()
        try:
            context.wrap_socket(connection, server_hostname=urlsplit(url).hostname).close()
        except ssl.SSLCertVerificationError as err:
            hint = "--cacert FILE names the certificates to trust"
            raise InputError(f"{text}: {err.verify_message}", hint=hint) from err
        except OSError as err:
            reason = getattr(err, "reason", None) or err.strerror or err
            hint = f"{option} {url.replace('https:', 'http:', 1)}, without TLS"
            raise InputError(f"{text}: {reason}", hint=hint) from err


def describe_end(server: Target) -> str | None:
    """What is known about a server's death; None if it may still run."""
    code = server.exit_code()
    if code is not None:
        return f"its process ended with code {code}"
    try:
        _connect(server.url).close()
    except ConnectionRefusedError:
        return f"nothing listens at {server.url} any more"
    except OSError:
        # The server is too busy to accept connections, or temporarily out of reach.
        return None
    return None


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S)


def confine(cores: float, memory_bytes: int | None) -> Confinement:
    """Prepares to limit a server to as many cores as its pod gets, by CPU affinity.

    Its memory is not limited, only compared with the pod's limit afterwards."""
    available = sorted(os.sched_getaffinity(0))
    # The last cores, because the kernel's own work and the generator prefer the first.
    chosen = available[-min(len(available), max(1, math.ceil(cores))) :]
    by: Literal["affinity", "nothing"] = "affinity" if len(chosen) < len(available) else "nothing"
    record = ServerLimits(by=by, cores=len(chosen), memory_bytes=memory_bytes, machine=this_machine())
    return Confinement(lambda: os.sched_setaffinity(0, chosen), record)


@contextmanager
def started_server(
    spec: Spec, log: Path, *, command: Sequence[str] | None = None, confinement: Confinement | None = None
) -> Iterator[Target]:
    """Starts a server of the spec's package on free ports, waits until it is ready, and stops it at the end.

    Its output goes to `log`."""
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
    confined = confinement.record if confinement else None
    server = Target(
        f"http://127.0.0.1:{base}",
        f"http://127.0.0.1:{Ports(base).supervisor}",
        pid=process.pid,
        exit_code=process.poll,
        confined=confined,
    )
    try:
        within_s = spec.serving.startup_timeout_s + _BEYOND_STARTUP_S
        if not await_ready(server, within_s):
            text, hint = _last_words(log)
            if (code := process.poll()) is not None:
                raise MarinaError(f"the server ended with code {code} before it was ready: {text}", hint=hint)
            text = f"the server was not ready after {within_s:g} s: {text}"
            raise MarinaError(text, hint=f"less {quote(str(log))}")
        cold_start_s = time.monotonic() - begun
        yield replace(server, cold_start_s=cold_start_s, start_phases=read_start_phases(server))
    finally:
        _stop(process, spec.serving.drain_timeout_s + _BEYOND_DRAIN_S)


def serve_command(spec: Path, out: Path | None = None) -> list[str]:
    """The command that serves a spec's package; `out` is the build folder's parent, unless it is the default."""
    where = [] if out is None else ["--out", str(out)]
    return [sys.executable, "-m", "marina", "serve", str(spec), *where]


def served_sha256(supervisor: str, timeout_s: float = 5.0, tls: ssl.SSLContext | None = None) -> str:
    """The hash of the package that a supervisor names; InputError if it names none."""
    page = f"{supervisor.rstrip('/')}/package"
    try:
        named = json.loads(_read(page, timeout_s, tls))["sha256"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as err:
        raise InputError(f"{page} does not name the package: {getattr(err, 'reason', None) or err}") from err
    # It goes to the terminal and into the records, so it must not be just any text.
    if not isinstance(named, str) or not re.fullmatch("[0-9a-f]{64}", named):
        raise InputError(f"{page} does not name the package: its `sha256` is not a hash")
    return named


def metrics(supervisor: str, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0) -> str:
    """The metrics page of a supervisor; OSError if it cannot be read."""
    page = f"{supervisor.rstrip('/')}/metrics"
    try:
        return _read(page, timeout_s, tls).decode(errors="replace")
    except (OSError, http.client.HTTPException) as err:
        raise OSError(f"{page} cannot be read: {getattr(err, 'reason', None) or err}") from err


def read_start_phases(server: Target) -> dict[str, float]:
    """How long each phase of a server's start took, s, as its metrics page says; empty if it does not."""
    try:
        page = metrics(server.supervisor)
    except OSError:
        return {}
    found = re.findall(r'^marina_start_phase_duration_seconds\{.*phase="(\w+)".*\} (\S+)$', page, re.MULTILINE)
    return {name: float(length) for name, length in found}


def await_ready(server: Target, timeout_s: float) -> bool:
    """Waits until a server is ready, for at most `timeout_s` and while it runs; returns whether it is."""
    until = time.monotonic() + timeout_s
    while not (ready := _is_ready(server.supervisor)) and time.monotonic() < until and server.exit_code() is None:
        time.sleep(0.05)
    return ready


def _read(page: str, timeout_s: float, tls: ssl.SSLContext | None) -> bytes:
    with _opener(tls).open(page, timeout=timeout_s) as answer:
        data: bytes = answer.read(_LONGEST_PAGE)
    return data


def _opener(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    # The load goes to the server directly, so these requests must, too, whatever proxy the environment names.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))


def _is_ready(supervisor: str) -> bool:
    try:
        with _opener().open(f"{supervisor}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _last_words(log: Path) -> tuple[str, str | None]:
    """The last line of a log, and the hint after it, as of an error."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    before, _, hint = text.rpartition("\n\nhint: ")
    is_last = bool(before) and "\n" not in hint
    lines = (before if is_last else text).splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it printed nothing", hint if is_last else None


def _stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    # As Ctrl-C does: no load balancer has to notice its end first.
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _prepare_process(confinement: Confinement | None) -> None:
    """Prepares the process before it becomes the server: its limits, and that it ends with its parent."""
    if confinement is not None:
        confinement.enter()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets its commands in the background ignore it
    # Not SIGTERM: while it is paused for a comparison, that would wait until it is resumed.
    end_with_parent(signal.SIGKILL)
