"""A load test inside the cluster: a Job whose pods send the load together, and the objects they need to find each other
and the server."""

from dataclasses import dataclass

from marina.config.errors import InputError
from marina.k8s.manifests import network, pod
from marina.k8s.manifests.labels import labels, metadata, pods_selector, selector_labels
from marina.k8s.manifests.plan import MIB, Plan
from marina.k8s.manifests.yaml_text import Manifest, ordered, resource

LOADTEST = "loadtest"
LOAD_CONTAINER = "load"
PORT = 5557
_FOLDER, _FILE = "/load", "plan.json"
_LARGEST_PLAN = 1_000_000
# Time in addition to the load itself: pods wait for a node and an image before it, and for the last answers after it.
_EXTRA_S = 1200
_TTL_S = 3600


@dataclass(frozen=True)
class LoadJob:
    """One run: the load's plan, the number of pods that send it, and its duration."""

    name: str
    """The name of all its objects."""
    image: str
    text: str
    """The load's plan as JSON, which every pod reads."""
    parts: int
    seconds: float
    selector: dict[str, str] | None = None
    """Labels of the pods that the load is for; None for those of the plan."""
    ports: tuple[int, ...] = ()
    """The ports of those pods; empty for the plan's inference port."""


def load_objects(plan: Plan, job: LoadJob) -> list[Manifest]:
    """The objects, the Job first: it owns the others, so that they are deleted with it. Raises InputError if the load's
    plan does not fit into a ConfigMap."""
    if (size := len(job.text.encode())) > _LARGEST_PLAN:
        raise InputError(
            f"samples and trace make a plan of {size:,} bytes, allowed in a ConfigMap: {_LARGEST_PLAN:,}",
            hint="name smaller samples (`load.sample` is packaged) or a shorter trace, or load it with `--url`",
        )
    return ordered(_job(plan, job), _config(plan, job), _meeting_point(plan, job), _policy(plan, job))


def _job(plan: Plan, job: LoadJob) -> Manifest:
    spec = {
        "activeDeadlineSeconds": int(job.seconds) + _EXTRA_S,
        # If a part of the load were sent again, or late, the measurement would be worthless.
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": job.parts,
        "parallelism": job.parts,
        "template": {
            "metadata": {"labels": labels(plan, LOADTEST) | _selector(plan, job)},
            "spec": _pod_spec(plan, job),
        },
        "ttlSecondsAfterFinished": _TTL_S,
    }
    return resource("batch/v1", "Job", metadata(plan, job.name, component=LOADTEST), spec=spec)


def _pod_spec(plan: Plan, job: LoadJob) -> Manifest:
    sender = {
        "name": LOAD_CONTAINER,
        # Kubernetes gives each pod the number of its part in JOB_COMPLETION_INDEX. The first pod leads the others,
        # which reach it by this name.
        "args": [f"{_FOLDER}/{_FILE}", "--leader", f"{job.name}-0.{job.name}", "--port", str(PORT)],
        "command": ["python", "-m", "marina.loadtest.sending.pod"],
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        # One process, so one core; memory for the answers of a long run.
        "resources": pod.exactly({"cpu": "1", "memory": "512Mi", "ephemeral-storage": "128Mi"}),
        "securityContext": pod.container_security(),
        "volumeMounts": [pod.mount("plan", _FOLDER, read_only=True), pod.mount("tmp", "/tmp")],
    }
    return {
        "automountServiceAccountToken": False,
        "containers": [sender],
        "enableServiceLinks": False,
        "imagePullSecrets": pod.pull_secrets(plan),
        "restartPolicy": "Never",
        "securityContext": pod.pod_security(plan),
        "subdomain": job.name,
        "volumes": [{"name": "plan", "configMap": {"name": job.name}}, pod.scratch("tmp", 64 * MIB)],
    }


def _config(plan: Plan, job: LoadJob) -> Manifest:
    named = metadata(plan, job.name, component=LOADTEST)
    return resource("v1", "ConfigMap", named, data={_FILE: job.text}, immutable=True)


def _meeting_point(plan: Plan, job: LoadJob) -> Manifest:
    """A headless Service that gives the pods DNS names even before they are ready."""
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "ports": [{"name": "load", "port": PORT, "protocol": "TCP", "targetPort": PORT}],
        "publishNotReadyAddresses": True,
        "selector": _selector(plan, job),
    }
    return resource("v1", "Service", metadata(plan, job.name, component=LOADTEST), spec=spec)


def _policy(plan: Plan, job: LoadJob) -> Manifest:
    """Allows the pods to talk to the server, to each other and to DNS."""
    load = {"podSelector": {"matchLabels": _selector(plan, job)}}
    server = {"podSelector": {"matchLabels": job.selector or pods_selector(plan)}}
    ports = map(network.policy_port, job.ports or (plan.ports.inference,))
    spec = {
        "egress": [
            network.allow_to([load], network.policy_port(PORT)),
            network.allow_to([server], *ports),
            *network.dns_rules(plan),
        ],
        "ingress": [network.allow_from([load], PORT)],
        "podSelector": load["podSelector"],
        "policyTypes": ["Ingress", "Egress"],
    }
    return resource("networking.k8s.io/v1", "NetworkPolicy", metadata(plan, job.name, component=LOADTEST), spec=spec)


def _selector(plan: Plan, job: LoadJob) -> dict[str, str]:
    return selector_labels(plan, LOADTEST) | {"marina/run": job.name}
