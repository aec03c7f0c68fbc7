"""Pods that are processes, and a Service in front of them: what kubelets and kube-proxies do for the fake cluster."""

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fake_apiserver import FakeCluster
from fake_apiserver_controllers import KIND
from fake_apiserver_store import Document, key, now
from running import start

from marina.config.ports import free_port_base
from marina.config.render import Ports
from marina.config.spec import Spec

_STEP_S, _FAILURES = 0.05, 2


class Server(Protocol):
    """What runs in a pod's container."""

    pid: int
    port: int

    def is_ready(self) -> bool: ...

    def runs(self) -> bool: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class RealServer:
    """A server of a package, as its image starts it."""

    _used: set[int] = set()  # noqa: RUF012  (of ranges that are free now, two servers may choose the same)

    def __init__(self, spec: Spec, mar: Path, folder: Path) -> None:
        base = next(base for base in iter(free_port_base, 0) if base not in self._used)
        self._used.add(base)
        self._running = start(spec, mar=mar, ports=Ports(base), log=folder / f"{base}.log")
        self.pid, self.port = self._running.process.pid, base

    def is_ready(self) -> bool:
        return self._running.get("/ready")[0] == 200

    def runs(self) -> bool:
        return self._running.process.poll() is None

    def terminate(self) -> None:
        self._running.process.terminate()

    def kill(self) -> None:
        self._running.process.kill()
        self._running.process.wait()


@dataclass
class Stub:
    """A server that is ready at once and ends when it is told to."""

    pid: int = 0
    port: int = 0
    running: bool = True

    def is_ready(self) -> bool:
        return self.running

    def runs(self) -> bool:
        return self.running

    def terminate(self) -> None:
        self.running = False

    kill = terminate


@dataclass
class _Container:
    server: Server
    name: str
    namespace: str
    restarts: int = 0
    failures: int = _FAILURES
    signalled: bool = False
    """Whether it was told to end."""


@dataclass
class Kubelet:
    """Starts a server for each pod on a node that is open, restarts those that end, and ends those of pods that are
    deleted."""

    fake: FakeCluster
    begin: Callable[[], Server]
    nodes: tuple[str, ...] = ("north", "south")
    containers: dict[str, _Container] = field(default_factory=dict)

    def __enter__(self) -> "Kubelet":
        for node in self.nodes:
            labels = {"topology.kubernetes.io/zone": f"zone-{node}"}
            self.fake.put(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}, "spec": {}}
            )
        self.fake.controllers.has_kubelet = True
        self.fake.execute = self._execute
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for container in self.containers.values():
            container.server.kill()

    def ports(self) -> list[int]:
        """The ports of the pods that are endpoints."""
        with self.fake.store.lock:
            pods = self.fake.store.list(KIND["Pod"], "")
        return [
            self.containers[pod["metadata"]["uid"]].server.port
            for pod in pods
            if pod["metadata"]["uid"] in self.containers and _is_endpoint(pod)
        ]

    def _run(self) -> None:
        while not self._stop.wait(_STEP_S):
            with self.fake.store.lock:
                pods = self.fake.store.list(KIND["Pod"], "")
            for pod in pods:
                if pod["metadata"]["uid"] not in self.containers and not self._start(pod):
                    continue
                self._step(pod)

    def _start(self, pod: Document) -> bool:
        if "deletionTimestamp" in pod["metadata"]:
            self._remove(pod)
            return False
        if (node := self._free_node()) is None:
            return False
        with self.fake.store.lock:
            bound = deepcopy(pod)
            bound["spec"]["nodeName"] = node
            self.fake.store.put(KIND["Pod"], bound)
        metadata = pod["metadata"]
        self.containers[metadata["uid"]] = _Container(self.begin(), metadata["name"], metadata["namespace"])
        return True

    def _free_node(self) -> str | None:
        """The node with the fewest pods, of those that are not cordoned."""
        with self.fake.store.lock:
            pods, nodes = (self.fake.store.list(KIND[kind], "") for kind in ("Pod", "Node"))
        on = [pod["spec"].get("nodeName") for pod in pods]
        free = [node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")]
        return min(free, key=on.count, default=None)

    def _step(self, pod: Document) -> None:
        container = self.containers[pod["metadata"]["uid"]]
        ending = "deletionTimestamp" in pod["metadata"]
        if not container.server.runs():
            container.server.kill()
            if ending:
                self._remove(pod)
                return
            container.server, container.failures = self.begin(), _FAILURES
            container.restarts += 1
        elif ending and not container.signalled:
            container.signalled = True
            container.server.terminate()
        container.failures = 0 if container.server.is_ready() else container.failures + 1
        self._report(pod, container)

    def _report(self, pod: Document, container: _Container) -> None:
        ready = container.failures < _FAILURES
        status: dict[str, Any] = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": pod["spec"]["containers"][0]["name"],
                    "ready": ready,
                    "restartCount": container.restarts,
                    "state": {"running": {"startedAt": now()}} if not pod.get("status") else {"running": {}},
                }
            ],
        }
        metadata = pod["metadata"]
        with self.fake.store.lock:
            current = self.fake.store.objects.get(key(KIND["Pod"], metadata["namespace"], metadata["name"]))
            if current:
                self.fake.store.put(KIND["Pod"], deepcopy(current) | {"status": status})

    def _remove(self, pod: Document) -> None:
        self.containers.pop(pod["metadata"]["uid"], None)
        self.fake.store.remove(key(KIND["Pod"], pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _execute(self, pod: Document, command: list[str]) -> tuple[int, str]:
        """Runs the command for real; its last word is the pid of the container's first process, which here is not 1."""
        assert command[-1] == "1", command
        pid = self.containers[pod["metadata"]["uid"]].server.pid
        done = subprocess.run(
            [sys.executable, *command[1:-1], str(pid)], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr


def _is_endpoint(pod: Document) -> bool:
    conditions = (pod.get("status") or {}).get("conditions", [])
    return {"type": "Ready", "status": "True"} in conditions and "deletionTimestamp" not in pod["metadata"]


class Service:
    """One port of this machine that leads each connection to the next endpoint, and learns of changes late."""

    def __init__(self, endpoints: Callable[[], Iterable[int]], *, late_s: float) -> None:
        self._endpoints, self._late_s = endpoints, late_s

    def __enter__(self) -> "Service":
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)), name="service", daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _main(self, started: threading.Event) -> None:
        self._loop, self._stop, self._turns = asyncio.get_running_loop(), asyncio.Event(), itertools.count()
        self._known: list[tuple[float, list[int]]] = [(0.0, list(self._endpoints()))]
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        looking = asyncio.create_task(self._look())
        started.set()
        await self._stop.wait()
        looking.cancel()
        server.close()

    async def _look(self) -> None:
        while True:
            self._known.append((time.monotonic(), await asyncio.to_thread(lambda: list(self._endpoints()))))
            while len(self._known) > 1 and self._known[1][0] < time.monotonic() - self._late_s:
                del self._known[0]
            await asyncio.sleep(_STEP_S)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = self._known[0][1]
        try:
            behind = await asyncio.open_connection("127.0.0.1", ports[next(self._turns) % len(ports)])
        except (OSError, ZeroDivisionError):
            writer.transport.abort()
            return
        await asyncio.gather(_pipe(reader, behind[1]), _pipe(behind[0], writer), return_exceptions=True)
        for each in (writer, behind[1]):
            each.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        # The end of one direction is the end of the other.
        writer.close()
