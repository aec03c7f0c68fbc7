"""`loadtest` and `calibrate` with `--in-cluster`: pods in the cluster send the load, and the verdict is made here, as
for any other load test."""

import argparse
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marina.config.errors import ClusterError, InputError, MarinaError
from marina.config.measured import Machine, PeakMemory, ServerLimits
from marina.config.progress import Progress
from marina.config.spec import Spec
from marina.k8s.cluster import Cluster, Endpoint, PodFacts, connect, read_endpoints, read_pod_facts
from marina.k8s.manifests import LoadJob, Plan, load_image, load_objects, make_plan, to_yaml
from marina.k8s.rollout import copied_pod, pod_metrics, run_load, served_packages
from marina.loadtest.judging import client_timeout_s, objective_of
from marina.loadtest.measuring import Measurement, Second, parse_reading, this_machine
from marina.loadtest.running import RunOptions
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import (
    LoadPlan,
    OnSecond,
    Server,
    packaged_request,
    read_record_lines,
    read_second_line,
    with_samples,
)

_PROCESSOR = re.compile(r'^marina_machine_info\{processor="([^"]*)"\}', re.MULTILINE)


class InCluster:
    """A deployed service that is loaded from pods in its cluster, as `marina.loadtest.running.session.RemoteServer`."""

    def __init__(
        self,
        plan: Plan,
        image: str,
        cluster: Cluster,
        progress: Progress,
        *,
        service: str | None,
        one_pod: bool,
        copy: Endpoint | None = None,
    ) -> None:
        self._service = service or plan.name
        self._copy, self._loaded = copy, tuple[Endpoint, ...]()
        if copy:
            self._selector: dict[str, str] = copy.pod["metadata"]["labels"]
            self._loaded, one_pod, behind_port = (copy,), True, copy.port
        else:
            behind = read_endpoints(cluster, plan.namespace, self._service)
            self._selector, behind_port = behind.selector, behind.port
            self._loaded = behind.ready[:1] if one_pod else behind.ready
        self.pods = len(self._loaded)
        self.url = f"http://{self._service}.{plan.namespace}.svc:{behind_port}"
        if one_pod:
            self.url = self._loaded[0].url
        # With --service, the cluster spreads the load, also to pods that start meanwhile.
        self.servers = () if service else tuple(Server(name=pod.name, url=pod.url) for pod in self._loaded)
        self._plan = plan
        self._image = image
        self._cluster = cluster
        self._progress = progress
        self._machine: Machine | None = None
        facts = read_pod_facts(cluster, self._loaded[0]) if one_pod else None
        self.cold_start_s = facts.cold_start_s if facts else None
        page = pod_metrics(cluster, plan, self._loaded[0].name) if one_pod else ""
        self.confined = _limits_of(facts, page) if facts else None
        self._peaks: dict[str, float] = {}

    def generate(self, plan: LoadPlan, on_second: OnSecond) -> Measurement:
        """Runs the plan as one Job, with a pod for each part, and returns what they measured."""
        measured, self._machine = read_record_lines(self.send(plan, on_second))
        self.read_memory()
        return measured

    def send(self, plan: LoadPlan, on_second: OnSecond, ends: threading.Event | None = None) -> list[str]:
        """The leader's log of such a Job; nothing if `ends` came first."""
        newest = 0

        def on_line(line: str) -> None:
            nonlocal newest
            second = read_second_line(line)
            if second and second[0] > newest:
                newest = second[0]
                on_second(*second)

        job = job_of(self._image, plan, f"{self._plan.name}-load-{secrets.token_hex(3)}")
        job = replace(job, selector=self._selector, ports=tuple(sorted({pod.port for pod in self._loaded})))
        return run_load(self._cluster, self._plan, job, on_line=on_line, progress=self._progress, ends=ends)

    def memory(self) -> PeakMemory | None:
        """The peak memory of each process of the loaded pod; None if several are loaded."""
        parts, workers = dict(self._peaks), sorted(name for name in self._peaks if name.startswith("worker "))
        if "torchserve" not in parts or not workers:
            return None
        return PeakMemory(
            java_bytes=int(parts["torchserve"]),
            workers_bytes=tuple(int(parts[name]) for name in workers),
            supervisor_bytes=int(parts.get("supervisor", 0)),
        )

    def read_memory(self) -> None:
        """Reads the memory of the loaded pod, if it is only one; its processes keep what a load made them take."""
        if self.confined is None:
            return
        page = pod_metrics(self._cluster, self._plan, self._loaded[0].name)
        for name, size in parse_reading(page, 0.0).memory.items():
            self._peaks[name] = max(size, self._peaks.get(name, 0.0))

    def served_sha256(self) -> str:
        """The sha256 of the package that the pods serve; InputError if they cannot be asked, serve different ones, or
        are no longer all ready."""
        try:
            ready_pods = [pod.name for pod in self._ready()]
            if gone := sorted({server.name for server in self.servers} - set(ready_pods)):
                raise InputError(f"pods stopped being ready during the load: {', '.join(gone)}")
            asked = [server.name for server in self.servers] or ready_pods
            served = sorted(set(served_packages(self._cluster, self._plan, asked)))
        except ClusterError as err:
            raise InputError(err.message, hint=err.hint) from err
        if len(served) > 1:
            raise InputError(f"the pods serve different packages: {', '.join(sha[:12] for sha in served)}")
        return served[0]

    def _ready(self) -> tuple[Endpoint, ...]:
        """The ready pods now; of a copy, itself, because it fails to answer if it is not."""
        return (self._copy,) if self._copy else read_endpoints(self._cluster, self._plan.namespace, self._service).ready

    def machine(self) -> Machine:
        """The machine of the pod that led the load."""
        return self._machine or this_machine()


def _limits_of(facts: PodFacts, page: str) -> ServerLimits | None:
    """The pod's limits, and its machine: the cluster does not know the processor's model, but its page names it."""
    if facts.cores is None:
        return None
    processor = _PROCESSOR.search(page)
    machine = Machine(
        processor=processor[1] if processor else facts.architecture,
        cores=facts.node_cores,
        cpu_limit=facts.cores,
        memory_bytes=facts.node_memory_bytes,
        memory_limit_bytes=facts.memory_bytes,
        system=facts.system,
        python="",
    )
    return ServerLimits(by="pod", cores=facts.cores, memory_bytes=facts.memory_bytes, machine=machine)


def job_of(image: str, load: LoadPlan, name: str) -> LoadJob:
    """The Job of one load."""
    seconds = load.schedule.total_s + load.timeout_s
    return LoadJob(name=name, image=image, text=load.model_dump_json(), parts=load.parts, seconds=seconds)


def dry_run_text(spec: Spec, plan: Plan, image: str, how: RunOptions, options: argparse.Namespace) -> str:
    """The objects of a run as YAML, or as JSON with `--json`, as `kubectl create -f -` takes them."""
    load = _load_plan(spec, plan, options.out / spec.name, how.schedule(spec, objective_of(spec)), how)
    objects = load_objects(plan, job_of(image, load, f"{plan.name}-load"))
    if options.json:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n"
    return to_yaml(objects)


def _load_plan(spec: Spec, plan: Plan, folder: Path, schedule: Schedule, how: RunOptions) -> LoadPlan:
    if plan.package is None:
        raise InputError("nothing was packaged yet, so there is no sample to send", hint=f"marina package {spec.file}")
    objective = objective_of(spec)
    url = f"http://{plan.name}.{plan.namespace}.svc:{plan.ports.inference}"
    return LoadPlan(
        request=with_samples(packaged_request(plan.package, folder, url), spec, plan.package.record, schedule.trace),
        schedule=schedule,
        parts=how.processes,
        timeout_s=client_timeout_s(objective, how.timeout_s),
        **objective.limits,
    )


@dataclass(frozen=True)
class GateLoad:
    """The requests that Marina sends itself while a gate stands: as many to each pod of both revisions."""

    spec: Spec
    folder: Path
    rate: float
    """A second, to each pod."""
    seconds: float
    """How long the gate stands at most."""
    cluster: Cluster
    progress: Progress

    @contextmanager
    def sending(self) -> Iterator["SentByMarina"]:
        """Sends from pods in the cluster until the context ends. What stops it early is said, and stops no gate."""
        plan = make_plan(self.spec, self.folder)
        image = load_image(self.folder, self.spec)
        target = InCluster(plan, image, self.cluster, self.progress, service=None, one_pod=False)
        sent, ends = SentByMarina(), threading.Event()
        schedule = Schedule(arrivals="poisson", rate=self.rate * target.pods, warmup_s=0, duration_s=self.seconds)
        load = _load_plan(self.spec, plan, self.folder, schedule, RunOptions())
        load = load.model_copy(update={"request": load.request.model_copy(update={"servers": target.servers})})

        def send() -> None:
            try:
                target.send(load, lambda number, second, _: sent.count(number, second), ends)
            except MarinaError as err:
                self.progress.say(f"note: marina sends no requests any more: {err.message}")

        self.progress.say(f"marina sends {self.rate:g} requests/s to each of {target.pods} pods")
        thread = threading.Thread(target=send, name="gate load")
        thread.start()
        try:
            yield sent
        finally:
            ends.set()
            thread.join()


class SentByMarina:
    """How many requests were answered so far, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, int] = {}

    def count(self, number: int, second: Second) -> None:
        self._seconds[number] = second.answered + sum(second.errors.values())

    @property
    def sent(self) -> int:
        return sum(self._seconds.values())


def target_of(plan: Plan, image: str, options: argparse.Namespace, *, service: str | None, one_pod: bool) -> InCluster:
    """The deployed service in the cluster of `--context`, or with `one_pod` only one of its pods."""
    cluster, progress = connect(options.context, options.kubeconfig), Progress(quiet=options.quiet)
    return InCluster(plan, image, cluster, progress, service=service, one_pod=one_pod)


@contextmanager
def copy_of_a_pod(plan: Plan, image: str, options: argparse.Namespace) -> Iterator[InCluster]:
    """A copy of a pod of the deployed service, which no client and no autoscaler knows, for the context."""
    cluster, progress = connect(options.context, options.kubeconfig), Progress(quiet=options.quiet)
    with copied_pod(cluster, plan, progress) as copy:
        yield InCluster(plan, image, cluster, progress, service=None, one_pod=True, copy=copy)
