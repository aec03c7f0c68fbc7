"""The plan of a deployment: the spec, what was built of it, what was measured, and every number that follows from them.

Nothing here writes or talks to a cluster; the modules beside it turn a plan into objects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from config.cpu_targets import node_labels
from config.errors import InputError
from config.packed_settings import check_compiled, check_settings
from config.quantity import canonical, quantity
from config.record import Package, read_package
from config.render import Ports
from config.spec import Spec
from k8s.manifests.evidence import EvidenceRecord, read_evidence
from k8s.manifests.image_record import ImageRecord, read_image
from k8s.manifests.versions import SUPPORTED_VERSIONS

MIB = 2**20
# Of a peak that was measured: fragmentation, a worker that starts while another ends.
MEMORY_MARGIN = 1.25
# Pods are kept for ten cold starts after they were needed last: one that was sent away by mistake costs a cold start.
_DOWN_WINDOW_PER_START = 10
_DOWN_WINDOW_S, _DOWN_WINDOW_UNMEASURED_S = (300, 3600), 600
_UP_PERIOD_S = (15, 60)
SCALE_UP_PERCENT, SCALE_UP_PODS, SCALE_DOWN_PERCENT = 100, 4, 25


@dataclass(frozen=True)
class Plan:
    """What is deployed. Without a package, image record or evidence the numbers are defaults and `notes` say so."""

    spec: Spec
    image: str
    """What the pods run: by digest once it was pushed."""
    package: Package | None
    evidence: EvidenceRecord | None
    built: ImageRecord | None = None
    """The record of the image; None before `marina image`."""

    @property
    def name(self) -> str:
        """Of every object, alone or as a prefix."""
        return self.spec.name

    @property
    def namespace(self) -> str:
        return self.spec.kubernetes.namespace

    @property
    def ports(self) -> Ports:
        """The image's command line does not change the base."""
        return Ports()

    @property
    def autoscaled(self) -> bool:
        """Whether an autoscaler owns the number of pods."""
        return self.spec.scaling.autoscaler != "none"

    @property
    def cold_start_s(self) -> float | None:
        """From the start of a server to ready, as measured."""
        return self.evidence.cold_start_s if self.evidence else None

    @property
    def target_rps_per_pod(self) -> float | None:
        """The rate a pod should run at: what the spec says, else the knee with room above; None without evidence."""
        stated, knee = self.spec.scaling.target_rps_per_pod, self.evidence.knee if self.evidence else None
        if stated != "auto":
            return stated
        # Three figures: a second calibration that finds the same does not change the manifests.
        return float(f"{knee.rps * self.spec.scaling.headroom:.3g}") if knee else None

    @property
    def scaling_target(self) -> float | None:
        """What the metric should be on each pod, in its own unit; None when that was never measured."""
        scaling = self.spec.scaling
        stated = {
            "gpu": float(scaling.target_gpu_percent),
            "queue_time": scaling.target_queue_ms / 1000,
            "waiting": scaling.target_waiting,
        }
        return self.target_rps_per_pod if scaling.metric == "requests" else stated[scaling.metric]

    @property
    def target_running(self) -> float:
        """How many slots of a language model should be in use on each pod, beside those who wait."""
        return float(f"{self.spec.writing.slots * self.spec.scaling.headroom:.3g}")

    @property
    def startup_budget_s(self) -> int:
        """How long the kubelet waits for the first ready: never less than TorchServe does for its workers, so that the
        supervisor can say what went wrong, and at least two measured cold starts."""
        patience_s = self.spec.serving.startup_timeout_s + 60
        return max(patience_s, math.ceil(2 * (self.cold_start_s or 0)))

    @property
    def progress_deadline_s(self) -> int:
        """When a rollout that stands still is given up: a start, its proof, five minutes for a node and an image."""
        return self.startup_budget_s + self.min_ready_s + 300

    @property
    def min_ready_s(self) -> int:
        """How long a new pod must stay ready before the next old one goes: some scrapes with real traffic on it."""
        return 10

    @property
    def grace_period_s(self) -> int:
        """The supervisor serves on, then drains; five seconds more for Java to end."""
        serving = self.spec.serving
        return math.ceil(serving.drain_propagation_s + serving.drain_timeout_s) + 5

    @property
    def max_surge(self) -> int | str:
        """Pods that a rollout may add: what the spec says, else a quarter; one where each needs a GPU."""
        stated, gpus = self.spec.kubernetes.rollout.max_surge, self.spec.kubernetes.resources.gpu
        return stated if stated != "auto" else 1 if gpus else "25%"

    @property
    def surge_pods(self) -> int:
        """How many that are at most, when all the pods there may be run."""
        scaling = self.spec.scaling
        pods = scaling.max_replicas if self.autoscaled else scaling.min_replicas
        surge = self.max_surge
        return surge if isinstance(surge, int) else math.ceil(int(surge.removesuffix("%")) * pods / 100)

    @property
    def cpu_percent(self) -> int | None:
        """The autoscaler's second metric; None where the cluster cannot tell the cpu of pods."""
        return self.spec.scaling.cpu_percent

    @property
    def memory(self) -> str:
        """Request and limit of the server: what the spec says, else the measured peak with room above."""
        stated, measured = self.spec.kubernetes.resources.memory, self.evidence.memory if self.evidence else None
        if stated != "auto":
            return canonical(stated)
        if measured is None:
            # Java may take its heap once more outside of it, and a worker of a small model half a GiB.
            worker_bytes = max(512 * MIB, 256 * MIB + self.spec.largest_batch_bytes)
            guess = 2 * self.spec.serving.java_heap_mb * MIB + self.spec.workers * worker_bytes + self.spec.cache_bytes
            return in_mib(max(guess, 2048 * MIB))
        return in_mib(with_room(self.spec, measured.total_bytes))

    @property
    def temporary_bytes(self) -> int:
        """Room under `/tmp`, where the MAR is unpacked: that, as much again, and 256 MiB for logs and metrics; a
        GiB more where something is compiled, by vLLM too."""
        model = self.spec.model
        compiles = model.compile == "jit" or model.on_mismatch == "jit" or self.spec.vllm is not None
        archive = self.package.bytes if self.package else 1024 * MIB
        return 2 * archive + 256 * MIB + (1024 * MIB if compiles else 0)

    @property
    def shared_bytes(self) -> int:
        """Of `/dev/shm`, a GiB for each of vLLM's GPUs; none without vLLM."""
        return 1024 * MIB * self.spec.vllm.gpus if self.spec.vllm else 0

    @property
    def loaded_bytes(self) -> int:
        """Room for a MAR that an init container downloads."""
        return self.package.bytes + 64 * MIB if self.package else 0

    @property
    def storage_bytes(self) -> int:
        """What a pod may write in all: its volumes, and the container logs that the node keeps."""
        store = self.spec.kubernetes.model
        logs = 128 * MIB + (2 * LOG_BYTES if self.spec.kubernetes.log_shipper else 0)
        return self.temporary_bytes + logs + (self.loaded_bytes if store and store.downloads and not store.cache else 0)

    @property
    def scale_up_window_s(self) -> int:
        """How long more pods must be wanted before they are made: not at all. The autoscaler takes the lowest wish of
        the window, so any window is time in which too few pods serve; the rate is a mean over four readings already,
        and the window against flapping is the one before pods go."""
        return 0

    @property
    def scale_up_period_s(self) -> int:
        """Twice as many pods, or four more, in this time at most: what a pod needs to help, from 15 s, the time between
        two looks of the autoscaler, to 60 s; 60 s unmeasured."""
        low, high = _UP_PERIOD_S
        return high if self.cold_start_s is None else min(high, max(low, math.ceil(self.cold_start_s)))

    @property
    def scale_down_window_s(self) -> int:
        """How long fewer pods must do before one goes: ten cold starts, at least 300 s; 600 s unmeasured."""
        low, high = _DOWN_WINDOW_S
        if self.cold_start_s is None:
            return _DOWN_WINDOW_UNMEASURED_S
        return min(high, max(low, math.ceil(_DOWN_WINDOW_PER_START * self.cold_start_s)))

    @property
    def scale_down_period_s(self) -> int:
        """At most a quarter of the pods goes in this time; the autoscaler allows half an hour at most."""
        return min(1800, max(120, 2 * math.ceil(self.cold_start_s or 0)))

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels that the spec selects nodes by, and the architecture of its package."""
        arch = {} if self.spec.model.cpu_target == "native" else {"kubernetes.io/arch": "amd64"}
        return {**arch, **self.spec.kubernetes.node_selector}

    @property
    def cpu_labels(self) -> dict[str, str]:
        """Labels of the nodes whose CPUs can run what the artifact was compiled for."""
        named = self.spec.kubernetes.cpu_labels
        # What a packaging machine has is nobody's class of CPUs: only the owner knows which nodes are like it.
        return node_labels(self.spec.model.cpu_target) if named is None else named

    @property
    def oldest_kubernetes(self) -> str:
        """The first minor version that knows every field used."""
        store = self.spec.kubernetes.model
        return "1.31" if store and store.image else SUPPORTED_VERSIONS[0]


# Of each of the two files that the server keeps for a log shipper.
LOG_BYTES = 32 * MIB


def make_plan(spec: Spec, folder: Path) -> Plan:
    """The plan from a spec and the records in its build folder (`build/<name>`), whichever of them are there."""
    package = read_package(folder) if (folder / "package.json").exists() else None
    if package and (package.record.name, package.record.version) != (spec.name, spec.version):
        text = f"{folder / 'package.json'}: is of `{package.record.name}` {package.record.version}, the spec is of "
        raise InputError(text + f"`{spec.name}` {spec.version}", hint=f"marina package {spec.file}")
    if package is None and spec.kubernetes.model:
        text = "`kubernetes.model`: needs the package's checksum, and nothing was packaged yet"
        raise InputError(text, hint=f"marina package {spec.file}")
    if package:
        check_settings(spec, folder / package.mar, package.record)
        check_compiled(spec, folder / package.mar, package.record)
    built = read_image(folder, spec, package)
    evidence = read_evidence(folder, package, spec_file=spec.file)
    if evidence:
        _check_memory(spec, evidence)
    image = built.reference if built else f"{spec.kubernetes.registry}/{spec.name}:{spec.version}"
    plan = Plan(spec, image, package, evidence, built)
    _check_metrics(plan)
    return plan


def worst_requests_bytes(spec: Spec) -> int:
    """What the largest requests that are permitted take, on every worker at once."""
    return spec.workers * spec.largest_batch_bytes


def with_room(spec: Spec, peak_bytes: int) -> float:
    """A measured peak and room above it: for the largest requests, which the measurement did not send, and for answers
    that are kept, for it goes past the cache."""
    return max(peak_bytes * MEMORY_MARGIN, peak_bytes + worst_requests_bytes(spec)) + spec.cache_bytes


def in_mib(size: float) -> str:
    """Bytes as a quantity, rounded up to 64 MiB."""
    return canonical(f"{64 * math.ceil(size / (64 * MIB))}Mi")


def _check_metrics(plan: Plan) -> None:
    if plan.autoscaled and plan.cpu_percent is None and plan.scaling_target is None:
        text = "nothing was measured, so without `scaling.cpu_percent` the autoscaler has no metric at all"
        raise InputError(text, hint=f"marina calibrate {plan.spec.file}, or set `scaling.target_rps_per_pod`")


def _check_memory(spec: Spec, evidence: EvidenceRecord) -> None:
    stated, measured = spec.kubernetes.resources.memory, evidence.memory
    if measured and stated != "auto" and quantity(stated) < measured.total_bytes:
        raise InputError(
            f"{spec.file}: `kubernetes.resources.memory`: got {stated}, but at its peak the server took "
            f"{measured.total_bytes / MIB:.0f}Mi",
            hint=f"memory: {in_mib(with_room(spec, measured.total_bytes))}, or auto",
        )
