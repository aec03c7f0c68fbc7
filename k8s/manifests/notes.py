"""Notes about a plan: which numbers are guesses, what to type to measure them, and why each derived number is what it
is."""

from collections.abc import Iterator
from dataclasses import dataclass

from marina.config.quantity import canonical
from marina.k8s.manifests import gateway, spot
from marina.k8s.manifests.objects import patched_fields
from marina.k8s.manifests.plan import (
    MEMORY_MARGIN,
    MIB,
    MIN_READY_S,
    SCALE_DOWN_PERCENT,
    SCALE_UP_PERCENT,
    SCALE_UP_PODS,
    Plan,
    largest_requests_bytes,
)
from marina.k8s.monitoring import SCRAPES_PER_RATE

# How long a cloud's load balancer goes on sending to a pod that is no longer an endpoint.
CLOUD_PROPAGATION_S = 15


@dataclass(frozen=True)
class Note:
    """One thing to know and what to type about it. `file` is the manifest that it is about."""

    file: str
    text: str
    hint: str


@dataclass(frozen=True)
class DerivedNumber:
    """One derived number as text, and the reason for it."""

    name: str
    value: str
    reason: str


def notes(plan: Plan) -> list[Note]:
    """All notes about a plan, sorted by file."""
    return sorted([*_built(plan), *_measured(plan), *_chosen(plan)], key=lambda note: note.file)


def derived_numbers(plan: Plan) -> list[DerivedNumber]:
    """The numbers that are derived from the spec and the evidence."""
    cold, serving, scaling = plan.cold_start_s, plan.spec.serving, plan.spec.scaling
    start = "unmeasured" if cold is None else f"cold start {cold:.1f} s"
    numbers = [
        DerivedNumber("memory of a pod", plan.memory, _memory_reason(plan)),
        DerivedNumber(
            "startup probe gives up after",
            f"{plan.startup_budget_s} s",
            f"the larger of startup_timeout_s {serving.startup_timeout_s} + 60 and 2 × cold start; {start}",
        ),
        DerivedNumber(
            "rollout gives up after",
            f"{plan.progress_deadline_s} s",
            f"the above + {MIN_READY_S} s of being ready + 300 s for a node and its image",
        ),
        DerivedNumber(
            "grace period of a pod",
            f"{plan.grace_period_s} s",
            f"propagation {serving.drain_propagation_s:g} + drain {serving.drain_timeout_s:g} + 5",
        ),
        DerivedNumber("room for a rollout", _room(plan), f"max_surge {plan.max_surge}, at most {plan.most_pods} pods"),
        *_spot(plan),
    ]
    if plan.autoscaled:
        numbers += [
            DerivedNumber("autoscaler's target", _target_text(plan), _target_reason(plan)),
            _seen(plan),
            DerivedNumber(
                "more pods", f"+{SCALE_UP_PERCENT} % or +{SCALE_UP_PODS} in {plan.scale_up_period_s} s, at once", start
            ),
            DerivedNumber(
                "fewer pods",
                f"-{SCALE_DOWN_PERCENT} % in {plan.scale_down_period_s} s after {plan.scale_down_window_s} s",
                start,
            ),
            DerivedNumber("pods", f"{scaling.min_replicas} to {scaling.max_replicas}", "scaling"),
        ]
    return [*numbers, *_gateway(plan)]


def _gateway(plan: Plan) -> Iterator[DerivedNumber]:
    route = plan.spec.kubernetes.route
    if route is None or not route.has_policies:
        return
    divided = f" ÷ {route.gateway_replicas} proxies" if route.gateway_replicas > 1 else ""
    if limited := gateway.limit(plan):
        requests, unit = limited
        target = f"target {plan.target_rps_per_pod:g} × {plan.most_pods} pods" if route.limit_rps == "auto" else "route"
        reason = "route, for each client" if route.limit_by == "client" else f"{target}{divided}"
        yield DerivedNumber("gateway lets in", f"{requests} requests a {unit.lower()}", reason)
    room = f"{plan.most_pods} pods × {gateway.places(plan)} in the queue and in batches"
    reason = f"{room if route.max_parallel == 'auto' else 'route'}{divided}"
    yield DerivedNumber("gateway has open", f"{gateway.max_parallel(plan)} requests", reason)


def _spot(plan: Plan) -> Iterator[DerivedNumber]:
    """What follows from the notice of a spot node."""
    cloud, asked = spot.cloud_of(plan), plan.spec.kubernetes.spot
    if cloud is None or asked is None:
        return
    on_demand, whole = spot.domains(plan)
    if on_demand:
        yield DerivedNumber(
            "pods on demand", f"{on_demand} of {whole}", f"spread over {whole} values of {spot.SPREAD_KEY}"
        )
    notice_s, needed_s = spot.notice_s(plan), plan.grace_period_s
    fits = "fits" if needed_s <= notice_s else "does not fit"
    yield DerivedNumber("notice of a spot node", f"{notice_s} s", f"{asked.provider}; the grace period of a pod {fits}")
    most = spot.most_pods_per_node(plan)
    reason = (
        f"evicted one by one, each replaced in {spot.replacement_s(plan)} s: a node {spot.NODE_S} + the cold start"
        if cloud.evicts
        else f"all end at once, and min_replicas is {plan.spec.scaling.min_replicas}"
    )
    yield DerivedNumber("pods on a spot node", f"at most {most}", reason)


def _seen(plan: Plan) -> DerivedNumber:
    interval_s, most = plan.spec.kubernetes.monitoring.scrape_interval_s, plan.most_pods
    costs = f"Prometheus reads {60 * most / interval_s:g} pages a minute at {most} pods"
    reason = f"{SCRAPES_PER_RATE} × scrape_interval_s {interval_s}; {costs}"
    return DerivedNumber("all of a new rate is seen in", f"{SCRAPES_PER_RATE * interval_s} s", reason)


def _built(plan: Plan) -> Iterator[Note]:
    if plan.package is None:
        text = "nothing was packaged yet, so the disk space for the model is a guess"
        yield Note("40-deployment.yaml", text, f"marina package {plan.spec.file}")
    if plan.built is None:
        yield Note("40-deployment.yaml", f"`{plan.image}` was not built yet", f"marina image {plan.spec.file}")
    elif plan.built.digest is None:
        text = f"`{plan.image}` was not pushed yet: pods run whatever image has that tag"
        yield Note("40-deployment.yaml", text, f"marina image {plan.spec.file} --push")


def _measured(plan: Plan) -> Iterator[Note]:
    spec, evidence = plan.spec, plan.evidence
    calibrate = f"marina calibrate {spec.file}"
    if plan.autoscaled and plan.scaling_target is None:
        text = "nothing was measured: the autoscaler only looks at the CPU"
        yield Note(_scaling_file(plan), text, f"{calibrate}, or set `scaling.target`")
    if evidence is None:
        yield Note("40-deployment.yaml", "nothing was measured: memory and times are defaults", calibrate)
        return
    # The search judges at rates of its own, whatever throughput the spec wants.
    measured = evidence.objective.model_dump(exclude={"throughput_rps"})
    if spec.slo and measured != {name: getattr(spec.slo, name) for name in measured}:
        objective = ", ".join(f"{name}: {limit:g}" for name, limit in measured.items() if limit is not None)
        text = f"the knee was found for `{objective}`, not for what `slo` says now"
        yield Note(_scaling_file(plan), text, calibrate)
    if evidence.arrivals == "constant" and spec.scaling.target_rps is None:
        text = "the knee was found with evenly spaced arrivals; at random ones, as users come, a pod holds less"
        yield Note(_scaling_file(plan), text, calibrate)
    if plan.target_rps_per_pod and evidence.usable_cores != spec.cores:
        text = f"measured with {evidence.usable_cores:g} cores, a pod has {spec.cores:g}"
        yield Note(_scaling_file(plan), text, f"{calibrate} --url URL_OF_A_POD")
    if evidence.cold_start_s is None:
        text = "the evidence is from a server that was already running: its start was not measured"
        yield Note("40-deployment.yaml", text, calibrate)


def patch_notes(plan: Plan) -> Iterator[Note]:
    """A note for each derived field that a patch changed."""
    for field in patched_fields(plan):
        text = f"a patch changes `{field.path}`: {field.why}"
        yield Note("40-deployment.yaml", text, "remove it from `kubernetes.patches`, unless you mean it")


def _chosen(plan: Plan) -> Iterator[Note]:
    yield from patch_notes(plan)
    key = plan.package.record.key if plan.package else None
    if key and key.isa and key.target == "native" and not plan.spec.kubernetes.node_selector:
        text = "compiled for the packaging machine's CPU: on nodes that lack its instructions, pods end at their start"
        hint = "model: {cpu_target: x86-64-v3}, or kubernetes: {node_selector: {LABEL: VALUE}} for nodes like it"
        yield Note("40-deployment.yaml", text, hint)
    if plan.spec.scaling.min_replicas == 1:
        text = "only one pod: while it moves to another node, nothing answers"
        yield Note("60-disruption-budget.yaml", text, "scaling: {min_replicas: 2}")
    if plan.spec.kubernetes.network.policy and plan.spec.kubernetes.route and not plan.spec.kubernetes.network.clients:
        text = "the route's Gateway may be unable to reach the pods until its namespace is one of `network.clients`"
        yield Note("30-network-policy.yaml", text, "kubernetes: {network: {clients: [NAMESPACE]}}")
    if plan.spec.kubernetes.resources.gpu and plan.surge_pods:
        text = f"a rollout needs {_room(plan)} free: if every GPU is in use, it waits forever"
        yield Note("40-deployment.yaml", text, "kubernetes: {rollout: {max_surge: 0}}")
    if plan.spec.kubernetes.route and plan.spec.serving.drain_propagation_s < CLOUD_PROPAGATION_S:
        text = (
            "a cloud's load balancer that sends directly to pods (GKE's NEGs, AWS's IP targets) goes on sending to a "
            f"stopping pod for longer than `serving.drain_propagation_s`, {plan.spec.serving.drain_propagation_s:g} s"
        )
        yield Note("gateway/http-route.yaml", text, f"serving: {{drain_propagation_s: {CLOUD_PROPAGATION_S}}}")


def _room(plan: Plan) -> str:
    """The resources that the cluster must have free during a rollout."""
    resources, pods = plan.spec.kubernetes.resources, plan.surge_pods
    if not pods:
        return "none"
    gpus = f", {pods * resources.gpu} {resources.gpu_resource}" if resources.gpu else ""
    return f"{pods} × ({canonical(resources.cpu)} cpu, {plan.memory}){gpus}"


def _scaling_file(plan: Plan) -> str:
    return "keda/scaled-object.yaml" if plan.spec.scaling.autoscaler == "keda" else "70-autoscaler.yaml"


def _memory_reason(plan: Plan) -> str:
    if plan.spec.kubernetes.resources.memory != "auto":
        return "kubernetes.resources"
    cache = f" + {plan.spec.cache_bytes / MIB:.0f}Mi of kept answers" if plan.spec.cache_bytes else ""
    if plan.evidence is None or plan.evidence.memory is None:
        worker = f"{plan.worker_guess_bytes / MIB:.0f}Mi a worker{cache}"
        shared = f", + {plan.shared_bytes / MIB:.0f}Mi of /dev/shm" if plan.shared_bytes else ""
        return f"unmeasured: twice Java's heap and {worker}, at least 2Gi{shared}"
    peak, largest = plan.evidence.memory.total_bytes, largest_requests_bytes(plan.spec)
    room = (
        f"+ {largest / MIB:.0f}Mi for the largest requests"
        if largest > peak * (MEMORY_MARGIN - 1)
        else f"× {MEMORY_MARGIN:g}"
    )
    return f"peak {peak / MIB:.0f}Mi {room}{cache}"


def _target_text(plan: Plan) -> str:
    target, cpu = plan.scaling_target, f"{plan.cpu_percent} % cpu"
    if target is None:
        return cpu
    texts = {
        "requests": f"{target:g} requests/s",
        "queue_time": f"{target * 1000:g} ms in the queue",
        "gpu": f"{target:g} % gpu",
        "waiting": f"{target:g} waiting or {plan.target_running:g} running",
    }
    text = f"{texts[plan.spec.scaling.metric]} a pod"
    return text if plan.cpu_percent is None else f"{text}, or {cpu}"


def _target_reason(plan: Plan) -> str:
    scaling, knee = plan.spec.scaling, plan.knee_rps
    if scaling.metric != "requests" or scaling.target_rps is not None:
        return "scaling"
    return f"knee {knee:.4g} × {scaling.knee_share:.0%}" if knee else "unmeasured"
