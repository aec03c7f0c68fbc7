"""The Deployment: its pods get requests only once they can serve, are replaced one by one, and end without losing a
request."""

import math

from kubernetes import client

from config.quantity import canonical
from k8s.manifests import log_shipper, model_volume, pod
from k8s.manifests.config_map import config_sha256
from k8s.manifests.labels import (
    CONFIG_ANNOTATION,
    EVIDENCE_ANNOTATION,
    PACKAGE_ANNOTATION,
    labels,
    metadata,
    selector_labels,
)
from k8s.manifests.plan import MIN_READY_S, Plan, in_mib
from k8s.monitoring import SERVER_CONTAINER

INFERENCE, PAGES = "inference", "supervisor"


def service_account(plan: Plan) -> client.V1ServiceAccount:
    """A ServiceAccount of its own without any rights: no Role, no token."""
    return client.V1ServiceAccount(
        api_version="v1", kind="ServiceAccount", metadata=metadata(plan), automount_service_account_token=False
    )


def deployment(plan: Plan) -> client.V1Deployment:
    """The Deployment. It sets no number of pods if an autoscaler controls it."""
    rollout = plan.spec.kubernetes.rollout
    strategy = client.V1RollingUpdateDeployment(max_unavailable=rollout.max_unavailable, max_surge=plan.max_surge)
    return client.V1Deployment(
        api_version="apps/v1",
        kind="Deployment",
        metadata=metadata(plan, annotations={EVIDENCE_ANNOTATION: plan.evidence.sha256} if plan.evidence else None),
        spec=client.V1DeploymentSpec(
            replicas=None if plan.autoscaled else plan.spec.scaling.min_replicas,
            selector=client.V1LabelSelector(match_labels=selector_labels(plan)),
            strategy=client.V1DeploymentStrategy(type="RollingUpdate", rolling_update=strategy),
            min_ready_seconds=MIN_READY_S,
            progress_deadline_seconds=plan.progress_deadline_s,
            revision_history_limit=3,
            template=_template(plan),
        ),
    )


def _template(plan: Plan) -> client.V1PodTemplateSpec:
    # Every change in the template replaces the pods, so it contains only what they depend on.
    annotations = {CONFIG_ANNOTATION: config_sha256(plan)}
    if plan.package:
        annotations[PACKAGE_ANNOTATION] = plan.package.sha256
    if plan.spec.kubernetes.monitoring.monitor == "annotations":
        annotations |= {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(plan.ports.supervisor),
            "prometheus.io/path": "/metrics",
        }
    return client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels(plan), annotations=annotations), spec=_pod_spec(plan)
    )


def _pod_spec(plan: Plan) -> client.V1PodSpec:
    kubernetes = plan.spec.kubernetes
    mounted = [*pod.base_volumes(plan), *model_volume.mar_volumes(plan), *log_shipper.log_volumes(plan)]
    return client.V1PodSpec(
        service_account_name=plan.name,
        automount_service_account_token=False,
        # Otherwise Kubernetes would set a dozen unused variables for every Service in the namespace.
        enable_service_links=False,
        security_context=pod.pod_security(plan),
        termination_grace_period_seconds=plan.grace_period_s,
        priority_class_name=kubernetes.priority_class,
        runtime_class_name=kubernetes.runtime_class,
        image_pull_secrets=pod.pull_secrets(plan),
        node_selector=plan.node_selector or None,
        affinity=_affinity(plan),
        tolerations=_tolerations(plan) or None,
        topology_spread_constraints=_spread(plan),
        init_containers=[*log_shipper.sidecars(plan), *model_volume.loaders(plan)] or None,
        containers=[_server(plan, [mount for _, mount in mounted])],
        volumes=[*(volume for volume, _ in mounted), *model_volume.secrets(plan), *log_shipper.settings(plan)],
    )


def _server(plan: Plan, mounts: list[client.V1VolumeMount]) -> client.V1Container:
    ports = plan.ports
    return client.V1Container(
        name=SERVER_CONTAINER,
        image=plan.image,
        image_pull_policy="IfNotPresent",
        args=_arguments(plan),
        env=_variables(plan) or None,
        ports=[
            client.V1ContainerPort(name=INFERENCE, container_port=ports.inference, protocol="TCP"),
            client.V1ContainerPort(name=PAGES, container_port=ports.supervisor, protocol="TCP"),
        ],
        # A pod may take long until it is first ready. Liveness only checks the process, never the model.
        startup_probe=_probe("/ready", period_s=2, failures=math.ceil(plan.startup_budget_s / 2), timeout_s=2),
        readiness_probe=_probe("/ready", period_s=2, failures=2, timeout_s=2),
        liveness_probe=_probe("/live", period_s=10, failures=6, timeout_s=5),
        resources=_resources(plan),
        security_context=pod.container_security(),
        volume_mounts=mounts,
    )


def _variables(plan: Plan) -> list[client.V1EnvVar]:
    """The passwords for Redis, from Secrets."""
    keys = [
        (name, client.V1SecretKeySelector(name=secret, key="password")) for _, secret, name in plan.spec.redis if secret
    ]
    return [client.V1EnvVar(name=name, value_from=client.V1EnvVarSource(secret_key_ref=key)) for name, key in keys]


def _arguments(plan: Plan) -> list[str] | None:
    """The server's arguments; None if those of the image will do."""
    extra = [*model_volume.mar_arguments(plan), *log_shipper.log_arguments(plan)]
    if not extra:
        return None
    archive = [] if plan.spec.kubernetes.model else ["--mar", model_volume.IN_IMAGE]
    return ["/config/spec.yaml", *archive, *extra, "--host", "::"]


def _probe(path: str, *, period_s: int, failures: int, timeout_s: int) -> client.V1Probe:
    return client.V1Probe(
        http_get=client.V1HTTPGetAction(path=path, port=PAGES, scheme="HTTP"),
        period_seconds=period_s,
        timeout_seconds=timeout_s,
        failure_threshold=failures,
        success_threshold=1,
    )


def _resources(plan: Plan) -> client.V1ResourceRequirements:
    """Requests equal limits, so that even on a full node a pod gets what was measured."""
    resources = plan.spec.kubernetes.resources
    amounts = {"cpu": canonical(resources.cpu), "memory": plan.memory, "ephemeral-storage": in_mib(plan.storage_bytes)}
    if resources.gpu:
        amounts[resources.gpu_resource] = str(resources.gpu)
    return client.V1ResourceRequirements(requests=dict(amounts), limits=dict(amounts))


def _affinity(plan: Plan) -> client.V1Affinity | None:
    """Requires nodes that can run the artifact. `extending` merges this with the affinity in the spec."""
    needed = [
        client.V1NodeSelectorRequirement(key=key, operator="In", values=[value])
        for key, value in plan.cpu_labels.items()
    ]
    if not needed:
        return None
    required = client.V1NodeSelector(node_selector_terms=[client.V1NodeSelectorTerm(match_expressions=needed)])
    return client.V1Affinity(
        node_affinity=client.V1NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    )


def _tolerations(plan: Plan) -> list[client.V1Toleration]:
    resources, taints = plan.spec.kubernetes.resources, []
    if resources.gpu:
        # GPU nodes usually have a taint with the name of the resource.
        taints.append(client.V1Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"))
    for taint in plan.spec.kubernetes.tolerations:
        rest, _, effect = taint.partition(":")
        key, equals, value = rest.partition("=")
        operator = "Equal" if equals else "Exists"
        taints.append(
            client.V1Toleration(key=key, operator=operator, value=value if equals else None, effect=effect or None)
        )
    return taints


def _spread(plan: Plan) -> list[client.V1TopologySpreadConstraint]:
    """Spreads pods over zones and nodes as evenly as there is room. Each version is spread by itself, so that a rollout
    is spread, too."""
    return [
        client.V1TopologySpreadConstraint(
            max_skew=1,
            topology_key=key,
            when_unsatisfiable="ScheduleAnyway",
            label_selector=client.V1LabelSelector(match_labels=selector_labels(plan)),
            match_label_keys=["pod-template-hash"],
        )
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
