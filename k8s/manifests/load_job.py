"""A load test inside the cluster: a Job whose pods send the load together, and the objects they need to find each other
and the server."""

from dataclasses import dataclass
from typing import Any

from kubernetes import client

from config.errors import InputError
from k8s.manifests import network, pod
from k8s.manifests.labels import labels, metadata, selector_labels
from k8s.manifests.plan import MIB, Plan
from k8s.manifests.yaml_text import plain

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


def load_objects(plan: Plan, job: LoadJob) -> list[dict[str, Any]]:
    """The objects, the Job first: it owns the others, so that they are deleted with it. Raises InputError if the load's
    plan does not fit into a ConfigMap."""
    if (size := len(job.text.encode())) > _LARGEST_PLAN:
        raise InputError(
            f"samples and trace make a plan of {size:,} bytes, allowed in a ConfigMap: {_LARGEST_PLAN:,}",
            hint="name smaller samples (`load.sample` is packaged) or a shorter trace, or load it with `--url`",
        )
    return plain(_job(plan, job), _config(plan, job), _meeting_point(plan, job), _policy(plan, job))


def _job(plan: Plan, job: LoadJob) -> client.V1Job:
    return client.V1Job(
        api_version="batch/v1",
        kind="Job",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=client.V1JobSpec(
            completion_mode="Indexed",
            completions=job.parts,
            parallelism=job.parts,
            # If a part of the load were sent again, or late, the measurement would be worthless.
            backoff_limit=0,
            active_deadline_seconds=int(job.seconds) + _EXTRA_S,
            ttl_seconds_after_finished=_TTL_S,
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(labels=labels(plan, LOADTEST) | _selector(plan, job)),
                spec=_pod_spec(plan, job),
            ),
        ),
    )


def _pod_spec(plan: Plan, job: LoadJob) -> client.V1PodSpec:
    # One process, so one core; memory for the answers of a long run.
    amounts = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "128Mi"}
    return client.V1PodSpec(
        subdomain=job.name,
        restart_policy="Never",
        automount_service_account_token=False,
        enable_service_links=False,
        security_context=pod.pod_security(plan),
        image_pull_secrets=pod.pull_secrets(plan),
        containers=[
            client.V1Container(
                name=LOAD_CONTAINER,
                image=job.image,
                image_pull_policy="IfNotPresent",
                command=["python", "-m", "loadtest.sending.pod"],
                # Kubernetes gives each pod the number of its part in JOB_COMPLETION_INDEX. The first pod leads the
                # others, which reach it by this name.
                args=[f"{_FOLDER}/{_FILE}", "--leader", f"{job.name}-0.{job.name}", "--port", str(PORT)],
                resources=client.V1ResourceRequirements(requests=dict(amounts), limits=dict(amounts)),
                security_context=pod.container_security(),
                volume_mounts=[
                    client.V1VolumeMount(name="plan", mount_path=_FOLDER, read_only=True),
                    client.V1VolumeMount(name="tmp", mount_path="/tmp"),
                ],
            )
        ],
        volumes=[
            client.V1Volume(name="plan", config_map=client.V1ConfigMapVolumeSource(name=job.name)),
            pod.scratch("tmp", 64 * MIB),
        ],
    )


def _config(plan: Plan, job: LoadJob) -> client.V1ConfigMap:
    return client.V1ConfigMap(
        api_version="v1",
        kind="ConfigMap",
        metadata=metadata(plan, job.name, component=LOADTEST),
        data={_FILE: job.text},
        immutable=True,
    )


def _meeting_point(plan: Plan, job: LoadJob) -> client.V1Service:
    """A headless Service that gives the pods DNS names even before they are ready."""
    port = client.V1ServicePort(name="load", port=PORT, target_port=PORT, protocol="TCP")
    return client.V1Service(
        api_version="v1",
        kind="Service",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=client.V1ServiceSpec(
            type="ClusterIP",
            cluster_ip="None",
            publish_not_ready_addresses=True,
            selector=_selector(plan, job),
            ports=[port],
        ),
    )


def _policy(plan: Plan, job: LoadJob) -> client.V1NetworkPolicy:
    """Allows the pods to talk to the server, to each other and to DNS."""
    load = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=_selector(plan, job)))
    loaded = job.selector or selector_labels(plan)
    server = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=loaded))
    ports = [network.policy_port(port) for port in job.ports or (plan.ports.inference,)]
    return client.V1NetworkPolicy(
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=client.V1NetworkPolicySpec(
            pod_selector=client.V1LabelSelector(match_labels=_selector(plan, job)),
            policy_types=["Ingress", "Egress"],
            ingress=[network.allow_from([load], PORT)],
            egress=[
                client.V1NetworkPolicyEgressRule(to=[load], ports=[network.policy_port(PORT)]),
                client.V1NetworkPolicyEgressRule(to=[server], ports=ports),
                *network.dns_rules(plan),
            ],
        ),
    )


def _selector(plan: Plan, job: LoadJob) -> dict[str, str]:
    return selector_labels(plan, LOADTEST) | {"marina/run": job.name}
