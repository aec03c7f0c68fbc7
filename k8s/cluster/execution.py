"""Runs a command in a pod's container."""

from contextlib import suppress

from kubernetes import client
from kubernetes.stream import stream

from marina.config.errors import ClusterError
from marina.k8s.cluster.client import Cluster

_ENDS_WITHIN_S = 30


def execute(cluster: Cluster, namespace: str, pod: str, container: str, command: list[str]) -> None:
    """Returns once the command has ended. Raises ClusterError if it cannot be run, or fails."""
    try:
        # The stream replaces a method of its ApiClient while it runs, so it gets an ApiClient of its own.
        core = client.CoreV1Api(client.ApiClient(cluster.settings))
        running = stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=container,
            command=command,
            stdin=False,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        running.run_forever(timeout=_ENDS_WITHIN_S)
        code = None
        # Without a status, the container ended before the command, which is what some commands are for.
        with suppress(TypeError, ValueError, KeyError):
            code = running.returncode
        said = running.read_all().strip()
        running.close()
    except (client.ApiException, OSError) as err:
        raise ClusterError(f"exec in {pod}: {getattr(err, 'reason', None) or err}") from err
    if code:
        raise ClusterError(f"exec in {pod}: exit code {code}: {said.splitlines()[-1] if said else 'no output'}")
