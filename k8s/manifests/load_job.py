"""A load test inside the cluster: a Job whose pods send the load together, and what they need to find each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kubernetes.client import (
    V1ConfigMap,
    V1ConfigMapVolumeSource,
    V1Container,
    V1Job,
    V1JobSpec,
    V1LabelSelector,
    V1LocalObjectReference,
    V1NetworkPolicy,
    V1NetworkPolicyEgressRule,
    V1NetworkPolicyIngressRule,
    V1NetworkPolicyPeer,
    V1NetworkPolicyPort,
    V1NetworkPolicySpec,
    V1ObjectMeta,
    V1PodSpec,
    V1PodTemplateSpec,
    V1ResourceRequirements,
    V1Service,
    V1ServicePort,
    V1ServiceSpec,
    V1Volume,
    V1VolumeMount,
)

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
# Pods that wait for a node and an image, and afterwards for the last answers.
_BESIDES_S = 1200
_KEPT_S = 3600


@dataclass(frozen=True)
class LoadJob:
    """One run: what every pod is told, how many there are, and how long it takes."""

    name: str
    """Of all its objects."""
    image: str
    text: str
    """The load's own plan, as JSON."""
    parts: int
    seconds: float
    selector: dict[str, str] | None = None
    """Labels of the pods that are loaded; None: those of the plan."""
    ports: tuple[int, ...] = ()
    """Where they listen; none: where the plan's do."""


def load_objects(plan: Plan, job: LoadJob) -> list[dict[str, Any]]:
    """The Job first: it owns the others, so that they go with it."""
    if len(job.text) > _LARGEST_PLAN:
        raise InputError(
            f"samples and trace make a plan of {len(job.text):,} bytes, and a ConfigMap holds {_LARGEST_PLAN:,}",
            hint="name smaller samples (`load.sample` is packaged) or a shorter trace, or load it with `--url`",
        )
    return plain(_job(plan, job), _config(plan, job), _meeting_point(plan, job), _policy(plan, job))


def _job(plan: Plan, job: LoadJob) -> V1Job:
    return V1Job(
        api_version="batch/v1",
        kind="Job",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=V1JobSpec(
            completion_mode="Indexed",
            completions=job.parts,
            parallelism=job.parts,
            # A load of which a part was sent twice, or late, says nothing.
            backoff_limit=0,
            active_deadline_seconds=int(job.seconds) + _BESIDES_S,
            ttl_seconds_after_finished=_KEPT_S,
            template=V1PodTemplateSpec(metadata=V1ObjectMeta(labels=_labels(plan, job)), spec=_pod_spec(plan, job)),
        ),
    )


def _pod_spec(plan: Plan, job: LoadJob) -> V1PodSpec:
    # One process, so one core; memory for the answers of a long run.
    amounts = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "128Mi"}
    return V1PodSpec(
        subdomain=job.name,
        restart_policy="Never",
        automount_service_account_token=False,
        enable_service_links=False,
        security_context=pod.pod_security(plan),
        image_pull_secrets=[V1LocalObjectReference(name=name) for name in plan.spec.kubernetes.pull_secrets] or None,
        containers=[
            V1Container(
                name=LOAD_CONTAINER,
                image=job.image,
                image_pull_policy="IfNotPresent",
                command=["python", "-m", "loadtest.sending.pod"],
                # Which part a pod is, Kubernetes says in JOB_COMPLETION_INDEX. The first leads; this is its name.
                args=[f"{_FOLDER}/{_FILE}", "--leader", f"{job.name}-0.{job.name}", "--port", str(PORT)],
                resources=V1ResourceRequirements(requests=dict(amounts), limits=dict(amounts)),
                security_context=pod.container_security(),
                volume_mounts=[
                    V1VolumeMount(name="plan", mount_path=_FOLDER, read_only=True),
                    V1VolumeMount(name="tmp", mount_path="/tmp"),
                ],
            )
        ],
        volumes=[
            V1Volume(name="plan", config_map=V1ConfigMapVolumeSource(name=job.name)),
            pod.scratch("tmp", 64 * MIB),
        ],
    )


def _config(plan: Plan, job: LoadJob) -> V1ConfigMap:
    named = metadata(plan, job.name, component=LOADTEST)
    return V1ConfigMap(api_version="v1", kind="ConfigMap", metadata=named, data={_FILE: job.text}, immutable=True)


def _meeting_point(plan: Plan, job: LoadJob) -> V1Service:
    """Gives the pods names, which they need before they are ready."""
    port = V1ServicePort(name="load", port=PORT, target_port=PORT, protocol="TCP")
    return V1Service(
        api_version="v1",
        kind="Service",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=V1ServiceSpec(
            type="ClusterIP",
            cluster_ip="None",
            publish_not_ready_addresses=True,
            selector=_selector(plan, job),
            ports=[port],
        ),
    )


def _policy(plan: Plan, job: LoadJob) -> V1NetworkPolicy:
    """They talk to the server, to each other, and to the cluster's names."""
    load = V1NetworkPolicyPeer(pod_selector=V1LabelSelector(match_labels=_selector(plan, job)))
    loaded = job.selector or selector_labels(plan)
    server = V1NetworkPolicyPeer(pod_selector=V1LabelSelector(match_labels=loaded))
    ports = [V1NetworkPolicyPort(port=port, protocol="TCP") for port in job.ports or (plan.ports.inference,)]
    together = [V1NetworkPolicyPort(port=PORT, protocol="TCP")]
    return V1NetworkPolicy(
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        metadata=metadata(plan, job.name, component=LOADTEST),
        spec=V1NetworkPolicySpec(
            pod_selector=V1LabelSelector(match_labels=_selector(plan, job)),
            policy_types=["Ingress", "Egress"],
            # Under its Python name, `var_from`, the client drops the field without a word.
            ingress=[V1NetworkPolicyIngressRule.model_validate({"from": [load], "ports": together})],
            egress=[
                V1NetworkPolicyEgressRule(to=[load], ports=together),
                V1NetworkPolicyEgressRule(to=[server], ports=ports),
                *network.dns_rules(plan),
            ],
        ),
    )


def _selector(plan: Plan, job: LoadJob) -> dict[str, str]:
    return selector_labels(plan, LOADTEST) | {"marina/run": job.name}


def _labels(plan: Plan, job: LoadJob) -> dict[str, str]:
    return labels(plan, LOADTEST) | {"marina/run": job.name}
