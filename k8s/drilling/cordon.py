"""Closes nodes to new pods for as long as a drill takes, and opens them again however it ends.

Who closed a node is written on the node, in the same request. A process of its own, the guard, waits for the drill's
end and opens what it left closed, also after a SIGKILL; what both left, as after a power cut, the next drill opens."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from marina.config.errors import ClusterError
from marina.k8s.cluster import Cluster, Document

MANAGER, ANNOTATION = "marina-drill", "marina/drill"
DONE = b"done\n"


def release_of(namespace: str, name: str) -> str:
    """The value of the annotation on a node."""
    return f"{namespace}/{name}"


def cordon(cluster: Cluster, node: str, release: str, *, dry_run: bool = False) -> None:
    """Closes a node that is open. Raises ClusterError if that may not be done."""
    document = _node(node) | {"spec": {"unschedulable": True}}
    document["metadata"]["annotations"] = {ANNOTATION: release}
    cluster.apply(document, manager=MANAGER, dry_run=dry_run)


def end_leftover_cordons(cluster: Cluster, release: str) -> list[str]:
    """Opens the nodes that drills of this release closed; their names."""
    nodes = cluster.list("v1", "Node", "")
    left = [node["metadata"]["name"] for node in nodes if _closed_by(node) == release]
    for name in left:
        # What this manager does not name any more is removed: the annotation, and that the node is closed.
        cluster.apply(_node(name), manager=MANAGER)
    return left


@contextmanager
def cordoned(
    cluster: Cluster, nodes: Sequence[str], release: str, *, kubeconfig: Path | None, say: Callable[[str], None]
) -> Iterator[None]:
    """Closes the nodes, in a context that opens them again. Without nodes, it does nothing."""
    if not nodes:
        yield
        return
    for node in nodes:
        cordon(cluster, node, release, dry_run=True)
    command = [sys.executable, "-m", "marina.k8s.drilling.guard", release, cluster.context, str(kubeconfig or "")]
    # In a session of its own: what ends the drill at the terminal must not end its guard.
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for node in nodes:
            cordon(cluster, node, release)
            say(f"  node {node}: cordoned")
        yield
    finally:
        assert guard.stdin
        try:
            for node in end_leftover_cordons(cluster, release):
                say(f"  node {node}: uncordoned")
        except ClusterError as err:
            say(f"note: nodes may still be cordoned, the guard (process {guard.pid}) goes on trying: {err.message}")
            guard.stdin.close()
        else:
            with suppress(BrokenPipeError):
                guard.communicate(DONE)


def _node(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def _closed_by(node: Document) -> str:
    return str((node["metadata"].get("annotations") or {}).get(ANNOTATION, ""))
