"""Breaks what a plan names, and reads until there are enough pods again."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from marina.config.errors import ClusterError
from marina.k8s.cluster import ApiError, Cluster, Document, execute
from marina.k8s.drilling.cordon import MANAGER
from marina.k8s.drilling.plan import DrillPlan, is_serving, read_pods, server_container
from marina.k8s.rollout import availability

POLL_S = 0.5
# The server is process 1 of its container. Its only child is TorchServe; SIGKILL would not reach process 1 itself.
_SERVER = "1"
_KILL = """
import os, signal, sys
for name in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{name}/stat") as stat:
        parent = stat.read().rpartition(")")[2].split()[1]
    if parent == sys.argv[1]:
        os.kill(int(name), signal.SIGKILL)
"""
# The file of `frozen_file` in server/system/rundir.py.
_SHUTDOWN = """
import os, signal, sys
open(os.path.join(os.environ.get("TMPDIR") or "/tmp", f"marina-{sys.argv[1]}.frozen"), "w").close()
os.kill(int(sys.argv[1]), signal.SIGTERM)
"""


@dataclass(frozen=True)
class PodReading:
    """How many pods served at a moment of `time.monotonic`, and how many should have."""

    at: float
    serving: int
    wanted: int


@dataclass
class Breakage:
    """One drill: `run` waits for `begin`, breaks, and reads until there are enough pods, or until `stop`."""

    cluster: Cluster
    plan: DrillPlan
    say: Callable[[str], None]
    begin: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    readings: list[PodReading] = field(default_factory=list)
    begun: float | None = None
    """When it began to break, by `time.monotonic`."""
    enough: float | None = None
    """When there were enough pods again."""
    refused: str = ""
    """Why the last eviction was refused, if one still is."""
    error: str = ""

    def run(self, within_s: float) -> None:
        """Returns once there are enough pods, or `within_s` after it began to break."""
        try:
            before = {pod["metadata"]["name"]: pod for pod in self._pods()}
            while not self.begin.wait(POLL_S):
                if self.stop.is_set():
                    return
                self._read(before, broken=False)
            breaking = threading.Thread(target=self._break_all, args=(before,), name="drill", daemon=True)
            self.begun = time.monotonic()
            breaking.start()
            while not self.stop.is_set() and time.monotonic() < self.begun + within_s:
                is_broken = not breaking.is_alive()
                if self._read(before, broken=True) and is_broken:
                    self.enough = self.readings[-1].at
                    break
                self.stop.wait(POLL_S)
            self.stop.set()
            breaking.join()
        except ClusterError as err:
            self.error = self.error or err.message
            self.stop.set()

    def _pods(self) -> list[Document]:
        return read_pods(self.cluster, self.plan.namespace, self.plan.selector)

    def _read(self, before: dict[str, Document], *, broken: bool) -> bool:
        """Whether the reading that it adds shows enough pods, and none of those that were to be broken."""
        deployment = self.cluster.get(self.plan.deployment)
        if deployment is None:
            raise ClusterError(f"{self.plan.deployment} was deleted during the drill")
        wanted, pods = int(deployment["spec"].get("replicas", 1)), self._pods()
        same = [pod for pod in pods if broken and self._is_as_before(pod, before)]
        serving = [pod for pod in pods if is_serving(pod) and not (self.plan.stays and pod in same)]
        self.readings.append(PodReading(time.monotonic(), len(serving), wanted))
        if self.plan.kind == "rollout":
            return bool(availability(deployment)) and not same
        return len(serving) >= wanted and not same

    def _is_as_before(self, pod: Document, before: dict[str, Document]) -> bool:
        """Whether it is one of those to be broken, and still what it was."""
        known = before.get(pod["metadata"]["name"])
        if pod["metadata"]["name"] not in self.plan.pods or known is None:
            return False
        if known["metadata"]["uid"] != pod["metadata"]["uid"] or pod["metadata"].get("deletionTimestamp"):
            return False
        return _restarts(pod) == _restarts(known)

    def _break_all(self, before: dict[str, Document]) -> None:
        try:
            if self.plan.kind == "rollout":
                self._restart()
            for pod in () if self.plan.kind == "rollout" else self.plan.pods:
                if self.plan.stays:
                    code = _KILL if self.plan.kind == "kill" else _SHUTDOWN
                    command = ["python", "-I", "-S", "-c", code, _SERVER]
                    execute(self.cluster, self.plan.namespace, pod, server_container(before[pod]), command)
                    self.say(f"  pod {pod}: {'killed' if self.plan.kind == 'kill' else 'SIGTERM'}")
                elif self._evict(pod):
                    self.say(f"  pod {pod}: evicted")
        except ClusterError as err:
            self.error = err.message
            self.stop.set()

    def _evict(self, pod: str) -> bool:
        """Asks until the disruption budget allows it; False if it never did."""
        path = f"/api/v1/namespaces/{self.plan.namespace}/pods/{pod}/eviction"
        metadata = {"name": pod, "namespace": self.plan.namespace}
        while not self.stop.is_set():
            try:
                self.cluster.request(
                    "POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
                )
            except ApiError as err:
                if err.status == 404:
                    return False
                if err.status != 429:
                    raise
                self.refused = err.message
                self.stop.wait(POLL_S)
            else:
                self.refused = ""
                return True
        return False

    def _restart(self) -> None:
        """As `kubectl rollout restart` does it."""
        annotations = {"kubectl.kubernetes.io/restartedAt": datetime.now(UTC).isoformat(timespec="microseconds")}
        metadata = {"name": self.plan.name, "namespace": self.plan.namespace}
        template = {"metadata": {"annotations": annotations}}
        document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
        self.cluster.apply(document, manager=MANAGER, force=True)
        self.say(f"  Deployment {self.plan.name}: restarted")


def _restarts(pod: Document) -> int:
    states = (pod.get("status") or {}).get("containerStatuses") or []
    with suppress(KeyError, ValueError):
        name = server_container(pod)
        return int(next((state["restartCount"] for state in states if state["name"] == name), 0))
    return 0
