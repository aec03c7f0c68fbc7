"""The plan of a deployment: the spec, the package and image built from it, the evidence, and every number that follows
from them.

Nothing here writes files or talks to a cluster; the modules beside this one turn a plan into objects."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from marina.config.cpu_targets import architecture_of, node_labels
from marina.config.errors import InputError
from marina.config.measured import Evidence
from marina.config.packed_settings import check_compiled, check_settings
from marina.config.quantity import canonical, quantity
from marina.config.record import ImageRecord, Package, read_package
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.k8s.manifests.evidence import read_evidence
from marina.k8s.manifests.records import read_image, read_signatures
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.monitoring import WORKLOADS, Engine, Workload

MIB = 2**20
# On top of a measured peak, for fragmentation and for a worker that starts while another one ends.
MEMORY_MARGIN = 1.25
# Pods are kept for ten cold starts after they were last needed, because removing one by mistake costs a cold start.
_DOWN_WINDOW_PER_START = 10
_DOWN_WINDOW_S, _DOWN_WINDOW_UNMEASURED_S = (300, 3600), 600
_UP_PERIOD_S = (15, 60)
SCALE_UP_PERCENT, SCALE_UP_PODS, SCALE_DOWN_PERCENT = 100, 4, 25
# More pods start as soon as they are wanted. The autoscaler acts on the lowest recommendation in the window, so any
# window is time in which too few pods serve. The rate is already a mean over four scrapes, and the window before pods
# are removed prevents flapping.
SCALE_UP_WINDOW_S = 0
# How long Java gets to end, after the drain.
JAVA_END_S = 5
# How long a new pod must stay ready before the next old one ends: a few scrapes with real traffic on it.
MIN_READY_S = 10


@dataclass(frozen=True)
class Plan:
    """What is deployed. Without a package, image record or evidence, the numbers are defaults and `notes` says so."""

    spec: Spec
    image: str
    """The image that the pods run, by digest once it was pushed."""
    package: Package | None
    evidence: Evidence | None
    built: ImageRecord | None = None
    """The record of the image; None before `marina image` ran."""
    knee_rps: float | None = None
    """The highest rate that meets the objective; None if it was not measured."""
    signatures: Mapping[str, str] = field(default_factory=dict)
    """The signed statements that `serving.verify` demands, by the name of their file."""
    cold_start_s: float | None = None
    """The time from the start of a server to ready; None if it was not measured."""
    engine: Engine = ""
    """What replaces the pods of a version by those of the next one; empty for a Deployment alone."""
    judge_image: str = ""
    """The image of the judge that the engine asks; empty without one."""

    @property
    def name(self) -> str:
        """The name of every object, or its prefix."""
        return self.spec.name

    @property
    def namespace(self) -> str:
        return self.spec.kubernetes.namespace

    @property
    def workload(self) -> Workload:
        """What makes the pods."""
        return WORKLOADS[self.engine]

    @property
    def ports(self) -> Ports:
        """The server's ports, which the image's command line leaves at their defaults."""
        return Ports()

    @property
    def autoscaled(self) -> bool:
        """Whether an autoscaler controls the number of pods."""
        return self.spec.scaling.autoscaler != "none"

    @property
    def target_rps_per_pod(self) -> float | None:
        """The requests/s that each pod should get: the spec's, or a share of the knee. None without either."""
        stated, knee_rps = self.spec.scaling.target_rps, self.knee_rps
        if stated is not None:
            return stated
        # Three digits, so that a second calibration with nearly the same result does not change the manifests.
        return float(f"{knee_rps * self.spec.scaling.knee_share:.3g}") if knee_rps else None

    @property
    def scaling_target(self) -> float | None:
        """The autoscaler's target for the metric of each pod, in the metric's unit, rounded as Kubernetes does; None if
        it was never measured. Raises InputError if Kubernetes cannot count it."""
        scaling = self.spec.scaling
        target = self.target_rps_per_pod if scaling.metric == "requests" else scaling.stated_target
        if target is None:
            return None
        if not 0.001 <= target < 1e15:
            text = f"the target is {target:g}, allowed: 0.001 to 1e+15, because Kubernetes counts in thousandths"
            raise InputError(f"{self.spec.place('scaling', 'target')}: {text}")
        return round(1000 * target) / 1000

    @property
    def target_running(self) -> float:
        """How many of a language model's slots should be in use on each pod."""
        return float(f"{self.spec.writing.slots * self.spec.scaling.knee_share:.3g}")

    @property
    def startup_budget_s(self) -> int:
        """How long the kubelet waits until a pod is first ready: longer than TorchServe waits for its workers, so that
        the supervisor can report what went wrong, and at least two measured cold starts."""
        patience_s = self.spec.serving.startup_timeout_s + 60
        return max(patience_s, math.ceil(2 * (self.cold_start_s or 0)))

    @property
    def progress_deadline_s(self) -> int:
        """How long a rollout may make no progress: a start, the time to stay ready, and five minutes for a new node and
        pulling the image."""
        return self.startup_budget_s + MIN_READY_S + 300

    @property
    def grace_period_s(self) -> int:
        """The grace period of a pod: the supervisor goes on serving, then drains; Java gets five more seconds to
        end."""
        serving = self.spec.serving
        return math.ceil(serving.drain_propagation_s + serving.drain_timeout_s) + JAVA_END_S

    @property
    def max_surge(self) -> int | str:
        """How many pods a rollout may add: the spec's number, or a quarter of the pods; only one if each needs a
        GPU."""
        stated, gpus = self.spec.kubernetes.rollout.max_surge, self.spec.kubernetes.resources.gpu
        return stated if stated != "auto" else 1 if gpus else "25%"

    @property
    def surge_pods(self) -> int:
        """`max_surge` as a number of pods, if as many pods run as the autoscaler may start."""
        surge = self.max_surge
        return surge if isinstance(surge, int) else math.ceil(int(surge.removesuffix("%")) * self.most_pods / 100)

    @property
    def most_pods(self) -> int:
        """How many pods run at most, without those of a rollout."""
        scaling = self.spec.scaling
        return scaling.max_replicas if self.autoscaled else scaling.min_replicas

    @property
    def cpu_percent(self) -> int | None:
        """The target of the autoscaler's second metric; None in a cluster that does not measure the cpu of pods."""
        return self.spec.scaling.cpu_percent

    @property
    def memory(self) -> str:
        """The server's memory request and limit: the spec's, or the measured peak plus a margin, or a guess."""
        stated, measured = self.spec.kubernetes.resources.memory, self.evidence.memory if self.evidence else None
        if stated != "auto":
            return canonical(stated)
        if measured is None:
            # Java can use as much memory outside its heap as inside.
            java, workers = 2 * self.spec.serving.java_heap_mb * MIB, self.spec.workers * self.worker_guess_bytes
            return in_mib(max(java + workers + self.spec.cache_bytes, 2048 * MIB) + self.shared_bytes)
        return in_mib(memory_with_margin(self.spec, measured.total_bytes))

    @property
    def worker_guess_bytes(self) -> int:
        """Memory of a worker that was not measured: half a GiB for a small model, more for a large one or for large
        requests."""
        model_bytes = self.package.bytes if self.package else 0
        return max(512 * MIB, 256 * MIB + model_bytes + self.spec.largest_batch_bytes)

    @property
    def temporary_bytes(self) -> int:
        """The size of `/tmp`, where the MAR is unpacked: twice the MAR, and 256 MiB for logs and metrics. A GiB more if
        the pod compiles the model, as vLLM also does."""
        model = self.spec.model
        compiles = model.compile == "jit" or self.spec.vllm is not None
        archive = self.package.bytes if self.package else 1024 * MIB
        return 2 * archive + 256 * MIB + (1024 * MIB if compiles else 0)

    @property
    def shared_bytes(self) -> int:
        """The size of `/dev/shm`: a GiB for each GPU with vLLM, otherwise 0."""
        return 1024 * MIB * self.spec.vllm.gpus if self.spec.vllm else 0

    @property
    def loaded_bytes(self) -> int:
        """The size of the volume for a MAR that an init container downloads."""
        return self.package.bytes + 64 * MIB if self.package else 0

    @property
    def storage_bytes(self) -> int:
        """The pod's ephemeral storage: its volumes, and the container logs that the node keeps."""
        store = self.spec.kubernetes.model
        return (
            self.temporary_bytes
            + 128 * MIB
            + (self.loaded_bytes if store and store.downloads and not store.cache else 0)
        )

    @property
    def scale_up_period_s(self) -> int:
        """In this time, the pods at most double or grow by four, whichever is more. It is a cold start, but at least 15
        s, the interval at which the autoscaler decides, and at most 60 s; 60 s if it was not measured."""
        low, high = _UP_PERIOD_S
        return high if self.cold_start_s is None else min(high, max(low, math.ceil(self.cold_start_s)))

    @property
    def scale_down_window_s(self) -> int:
        """How long fewer pods must be enough before any is removed: the spec's, or ten cold starts, from 300 s to an
        hour; 600 s if the cold start was not measured."""
        low, high = _DOWN_WINDOW_S
        if self.spec.scaling.scale_down_window_s != "auto":
            return self.spec.scaling.scale_down_window_s
        if self.cold_start_s is None:
            return _DOWN_WINDOW_UNMEASURED_S
        return min(high, max(low, math.ceil(_DOWN_WINDOW_PER_START * self.cold_start_s)))

    @property
    def scale_down_period_s(self) -> int:
        """In this time, at most a quarter of the pods is removed. Kubernetes allows at most half an hour."""
        return min(1800, max(120, 2 * math.ceil(self.cold_start_s or 0)))

    @property
    def node_selector(self) -> dict[str, str]:
        """The node labels that a pod requires: the spec's, and those of nodes that can run the compiled artifact."""
        isa = self.package.record.key.isa if self.package else ()
        name = "amd64" if self.spec.model.cpu_target != "native" else architecture_of(isa)
        arch = {"kubernetes.io/arch": name} if name else {}
        # No other labels exist for CPUs like the packaging machine's (`native`): only the owner knows which nodes are
        # like it. Nor are any required of nodes that the owner chose.
        return arch | (self.spec.kubernetes.node_selector or node_labels(self.spec.model.cpu_target))

    @property
    def oldest_kubernetes(self) -> str:
        """The first minor version of Kubernetes that has every field in use."""
        store = self.spec.kubernetes.model
        return "1.31" if store and store.image else SUPPORTED_VERSIONS[0]


def make_plan(spec: Spec, folder: Path) -> Plan:
    """Makes the plan from a spec and the records in its build folder (`build/NAME`), as far as they exist. Raises
    InputError if they do not belong together."""
    package = read_package(folder) if (folder / "package.json").exists() else None
    if package and (package.record.name, package.record.version) != (spec.name, spec.version):
        text = f"{folder / 'package.json'}: is for `{package.record.name}` {package.record.version}, the spec is for "
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
    knee = evidence.knee if evidence else None
    cold_start_s = evidence.cold_start_s if evidence else None
    plan = Plan(
        spec,
        image,
        package,
        evidence,
        built,
        knee_rps=knee.rps if knee else None,
        cold_start_s=cold_start_s,
        signatures=read_signatures(folder, spec, package),
    )
    _check_metrics(plan)
    return plan


def largest_requests_bytes(spec: Spec) -> int:
    """Memory for a batch of the largest permitted requests on every worker at once."""
    return spec.workers * spec.largest_batch_bytes


def memory_with_margin(spec: Spec, peak_bytes: int) -> float:
    """A measured peak plus a margin, which leaves room for the largest requests and the cache of answers: a measurement
    sends no such requests, and bypasses the cache."""
    return max(peak_bytes * MEMORY_MARGIN, peak_bytes + largest_requests_bytes(spec)) + spec.cache_bytes


def in_mib(size: float) -> str:
    """Bytes as a quantity, rounded up to a multiple of 64 MiB."""
    return canonical(f"{64 * math.ceil(size / (64 * MIB))}Mi")


def _check_metrics(plan: Plan) -> None:
    if plan.autoscaled and plan.cpu_percent is None and plan.scaling_target is None:
        text = "nothing was measured, so without `scaling.cpu_percent` the autoscaler has no metric at all"
        raise InputError(text, hint=f"marina calibrate {plan.spec.file}, or set `scaling.target`")


def _check_memory(spec: Spec, evidence: Evidence) -> None:
    stated, measured = spec.kubernetes.resources.memory, evidence.memory
    if measured and stated != "auto" and quantity(stated) < measured.total_bytes:
        raise InputError(
            f"{spec.file}: `kubernetes.resources.memory`: got {stated}, but the server used up to "
            f"{measured.total_bytes / MIB:.0f}Mi",
            hint=f"memory: {in_mib(memory_with_margin(spec, measured.total_bytes))}, or auto",
        )
