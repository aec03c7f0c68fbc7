"""A server as a context: started in a process of its own, waited for, stopped as a pod is."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specs import ROOT

from marina.config.errors import Refused
from marina.config.ports import free_port_base
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.server.system.sockets import reachable_host

_POLL_S = 0.05


@dataclass
class Running:
    """A started server; `url` takes inferences, `pages` is the supervisor's port."""

    process: subprocess.Popen[bytes]
    spec: Spec
    ports: Ports
    log: Path
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.ports.inference}"

    @property
    def pages(self) -> str:
        return f"http://{self.host}:{self.ports.supervisor}"

    def get(self, page: str) -> tuple[int, str]:
        """Status and body of `/live`, `/ready`, `/metrics` or `/package`; status 0 when nobody listens."""
        try:
            with urllib.request.urlopen(self.pages + page, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as err:
            return err.code, err.read().decode()
        except OSError:
            return 0, ""

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether it is ready, and the body that says why not."""
        status, body = self.get("/ready")
        return status == 200, json.loads(body) if body else {}

    def wait_ready(self, timeout_s: float) -> None:
        """Refused when it ends first, or is not ready in time; with its last lines."""
        deadline, ready = time.monotonic() + timeout_s, False
        while not ready:
            ready = self.readiness()[0]
            # Asked last: where it could not take its port, whoever has that port may have said yes.
            if self.process.poll() is not None:
                raise Refused(f"the server ended with {self.process.returncode} before it was ready:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Refused(f"not ready after {timeout_s:g} s: {self.readiness()[1].get('missing')}\n{self.tail()}")
            if not ready:
                time.sleep(_POLL_S)

    def stop(self, timeout_s: float | None = None) -> int:
        """Ends it as Kubernetes does, and kills it when that takes too long; its exit code."""
        serving = self.spec.serving
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s or serving.drain_propagation_s + serving.drain_timeout_s + 15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextmanager
def running(
    spec: Spec,
    *,
    mar: Path,
    port_base: int | None = None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    wait: bool = True,
    docs: bool = False,
    host: str = "127.0.0.1",
) -> Iterator[Running]:
    """A server for `spec`, ready when entered unless `wait` is false, drained and stopped when left."""
    ports = Ports(port_base if port_base is not None else free_port_base())
    with tempfile.TemporaryDirectory(prefix="marina-log-") as folder:
        log = log or Path(folder) / "server.log"
        server = start(spec, mar=mar, ports=ports, log=log, environment=environment, docs=docs, host=host)
        try:
            if wait:
                server.wait_ready(spec.serving.startup_timeout_s + 60)
            yield server
        finally:
            server.stop()


def start(
    spec: Spec,
    *,
    mar: Path,
    ports: Ports,
    log: Path,
    environment: Mapping[str, str] | None = None,
    docs: bool = False,
    host: str = "127.0.0.1",
) -> Running:
    """Starts the server's process and returns at once."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # Not the spec's file: what is given may be a changed copy of what is in it.
    given = log.with_suffix(".spec.json")
    given.write_text(spec.model_dump_json(exclude_none=True), encoding="utf-8")
    # A benchmark's server runs for long, and is measured.
    program = (
        [str(ROOT / "tests" / "quick_server.py")] if "PYTEST_CURRENT_TEST" in os.environ else ["-m", "marina.server"]
    )
    command = [sys.executable, *program, str(given), "--mar", str(mar), "--port-base", str(ports.base)]
    command += ["--host", host, *(["--docs"] if docs else [])]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return Running(process, spec, ports, log, reachable_host(host))
