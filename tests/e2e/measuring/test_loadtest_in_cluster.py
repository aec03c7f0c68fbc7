"""`marina loadtest --in-cluster` against an API server that is played; the Job's pods are real processes."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from fake_apiserver import FakeCluster
from fake_apiserver_controllers import KIND
from loadtest_rig import SPEC, behave, running_server
from specs import ROOT
from waiting import eventually

import marina
from marina.config.load import load_spec
from marina.config.progress import Progress
from marina.config.render import Ports
from marina.in_cluster import GateLoad
from marina.k8s.cluster import connect

pytestmark = pytest.mark.e2e
SPACE = "marina"


class Jobs:
    """Does what the Job controller and the kubelets do: a pod for each index, a process in each, its output its log."""

    def __init__(self, fake: FakeCluster, folder: Path, failing: bool) -> None:
        self._fake, self._folder, self._failing = fake, folder, failing
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._known: set[str] = set()
        self._running: dict[str, tuple[subprocess.Popen[str], Path]] = {}
        self.seen: list[dict[str, Any]] = []
        self.plans: list[str] = []
        self.copies: list[dict[str, Any]] = []

    def __enter__(self) -> "Jobs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for process, _ in self._running.values():
            process.kill()
            process.wait()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with self._fake.store.lock:
                jobs = self._fake.store.list(KIND["Job"], SPACE)
            for job in jobs:
                config = self._fake.get("ConfigMap", job["metadata"]["name"], SPACE)
                if job["metadata"]["uid"] not in self._known and (config or "-copy-" in job["metadata"]["name"]):
                    self._known.add(job["metadata"]["uid"])
                    if config:
                        self._start(job, config)
                    else:
                        self._start_copy(job)
            self._report()

    def _start_copy(self, job: dict[str, Any]) -> None:
        """A pod of a Job that is ready at once."""
        self.copies.append(job)
        name, template = job["metadata"]["name"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        labels = template["metadata"]["labels"]
        metadata = {"name": f"{name}-x", "namespace": SPACE, "labels": labels, "ownerReferences": [owner]}
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self._fake.put(document | {"status": status})

    def _start(self, job: dict[str, Any], config: dict[str, Any]) -> None:
        self.seen.append(job)
        name, template = job["metadata"]["name"], job["spec"]["template"]
        file = self._folder / f"{name}.json"
        file.write_text(config["data"]["plan.json"], encoding="utf-8")
        self.plans.append(config["data"]["plan.json"])
        with socket.create_server(("", 0)) as free:
            port = str(free.getsockname()[1])
        for index in range(job["spec"]["completions"]):
            pod = f"{name}-{index}"
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
            metadata = {
                "name": pod,
                "namespace": SPACE,
                "labels": template["metadata"]["labels"],
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                "ownerReferences": [owner],
            }
            self._fake.put(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": template["spec"],
                    "status": {"phase": "Running"},
                }
            )
            output = self._folder / f"{pod}.log"
            plan = str(file) if not self._failing else "/no/such/plan"
            command = [
                sys.executable,
                "-m",
                "marina.loadtest.sending.pod",
                plan,
                "--leader",
                "127.0.0.1",
                "--port",
                port,
            ]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "JOB_COMPLETION_INDEX": str(index)}
            with output.open("w") as stream:
                process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, text=True)
            self._running[pod] = process, output

    def _report(self) -> None:
        for name, (process, output) in self._running.items():
            self._fake.logs[name] = output.read_text(encoding="utf-8")
            code, pod = process.poll(), self._fake.get("Pod", name, SPACE)
            if pod and code is not None and pod["status"]["phase"] == "Running":
                self._fake.put(pod | {"status": {"phase": "Failed" if code else "Succeeded"}})


@contextmanager
def cluster_with_jobs(
    folder: Path, url: str, *, failing: bool = False, pods: int = 1
) -> Iterator[tuple[FakeCluster, Jobs]]:
    """A cluster whose ready pods are all the server behind `url`, with a pod that is not ready."""
    port = urlsplit(url).port or 0
    labels = {
        f"app.kubernetes.io/{key}": value
        for key, value in (("name", "digits"), ("instance", "digits"), ("component", "inference"))
    }
    with FakeCluster(folder) as fake, Jobs(fake, folder, failing) as jobs:
        fake.backends = {8080: port, 8090: Ports(port).supervisor}
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        listens = {"name": "inference", "containerPort": port}
        resources = {"limits": {"cpu": "2", "memory": "2Gi"}}
        spec = {"containers": [{"name": "server", "image": "server:1", "ports": [listens], "resources": resources}]}
        for number in range(1, pods + 2):
            ready = {"type": "Ready", "status": "True" if number <= pods else "False"}
            status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
            metadata = {"name": f"digits-{number}", "namespace": SPACE, "labels": labels}
            fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
        # Its pods are those above.
        fake.controllers.stuck = True
        deployed = {"replicas": pods, "selector": {"matchLabels": labels}}
        deployed["template"] = {"metadata": {"labels": labels}, "spec": spec}
        metadata = {"name": "digits", "namespace": SPACE}
        fake.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployed})
        for name in ("digits", "digits-predictor"):
            behind = {"selector": labels, "ports": [{"port": 8080, "targetPort": "inference"}]}
            metadata = {"name": name, "namespace": SPACE}
            fake.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": behind})
        yield fake, jobs


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    with running_server(tmp_path / "build/digits") as url:
        yield url


def load(folder: Path, fake: FakeCluster, *more: str) -> int:
    options = ["--duration", "10", "--warmup", "1", "--processes", "2", "--kubeconfig", str(fake.kubeconfig)]
    return marina.main(
        ["loadtest", str(folder / "spec.yaml"), "--out", str(folder / "build"), "--in-cluster", *options, *more]
    )


def measured(folder: Path) -> dict[str, Any]:
    verdict = json.loads((folder / "build/digits/verdict.json").read_text(encoding="utf-8"))
    measurement: dict[str, Any] = verdict["runs"][0]["measurement"]
    return measurement


def test_the_load_comes_from_pods_and_goes_to_all_that_are_ready_and_the_verdict_is_made_here(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("slo: {", "slo: {throughput_rps: 60, "), encoding="utf-8")
    with cluster_with_jobs(tmp_path, service, pods=2) as (fake, jobs):
        assert load(tmp_path, fake, "--arrivals", "constant") == 0
        printed = capsys.readouterr().out
        assert "slo: PASS" in printed
        assert "  digits-1 answered 600, p99 " in printed
        # What the spec promises of each pod is asked of both.
        assert measured(tmp_path)["sent"] == 1200
        assert [(share["name"], share["good"]) for share in measured(tmp_path)["shares"]] == [
            ("digits-1", 600),
            ("digits-2", 600),
        ]
        assert len(measured(tmp_path)["generators"]) == 2
        assert jobs.seen[0]["spec"]["completions"] == 2
        # Nothing is left: not the Job, nor what it owned.
        name = jobs.seen[0]["metadata"]["name"]
        for kind in ("Job", "ConfigMap", "Service", "NetworkPolicy"):
            assert name not in fake.names(kind, SPACE)


def test_another_package_behind_the_service_makes_the_verdict_invalid(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "build/digits/package.json"
    package = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps(package | {"sha256": "cd" * 32}), encoding="utf-8")
    with cluster_with_jobs(tmp_path, service, pods=2) as (fake, _):
        assert load(tmp_path, fake, "--rate", "120", "--one-pod") == 3
    printed = capsys.readouterr().out
    assert "package-differs" in printed
    # Not what a server on this machine would need.
    assert printed.splitlines()[-1].startswith(f"hint: marina deploy {tmp_path / 'spec.yaml'} --out ")
    assert [share["name"] for share in measured(tmp_path)["shares"]] == ["digits-1"]


def test_a_pod_that_fails_ends_the_load_with_its_last_words(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_with_jobs(tmp_path, service, failing=True) as (fake, jobs):
        assert load(tmp_path, fake, "--rate", "120") not in (0, 3)
        assert jobs.seen[0]["metadata"]["name"] not in fake.names("Job", SPACE)
    error = capsys.readouterr().err
    assert "the load cannot run: digits-load-" in error
    assert "No such file or directory: '/no/such/plan'" in error


def test_a_dry_run_prints_what_would_be_made(service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del service
    folder = tmp_path / "build"
    command = ["loadtest", str(tmp_path / "spec.yaml"), "--out", str(folder), "--rate", "5", "--dry-run"]
    assert marina.main(command) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert marina.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "List", "items": documents}
    assert [document["kind"] for document in documents] == ["Job", "ConfigMap", "Service", "NetworkPolicy"]
    assert json.loads(documents[1]["data"]["plan.json"])["schedule"]["rate"] == 5


def test_the_knee_of_one_pod_is_that_of_its_own_limits(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behave(service, capacity=400)
    with cluster_with_jobs(tmp_path, service, pods=2) as (fake, jobs):
        options = ["--in-cluster", "--kubeconfig", str(fake.kubeconfig), "--first", "300", "--trial", "1"]
        options += ["--warmup", "0.3", "--arrivals", "constant", "--tolerance", "0.2"]
        code = marina.main(["calibrate", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), *options])
        # No client, no autoscaler and no budget knows the copy, and nothing is left of it.
        (copy,) = jobs.copies
        of_pods = fake.get("Service", "digits", SPACE)["spec"]["selector"].items()
        assert not of_pods <= copy["spec"]["template"]["metadata"]["labels"].items()
        assert copy["spec"]["activeDeadlineSeconds"] < 3600
        assert all(copy["metadata"]["name"] not in fake.names(kind, SPACE) for kind in ("Job", "NetworkPolicy"))
        loads = [json.loads(plan)["request"]["servers"][0]["name"] for plan in jobs.plans]
        assert set(loads) == {f"{copy['metadata']['name']}-x"}
    printed = capsys.readouterr().out
    assert code == 0, printed
    evidence = json.loads((tmp_path / "build/digits/evidence.json").read_text(encoding="utf-8"))
    assert (evidence["server"]["by"], evidence["server"]["cores"]) == ("pod", 2)
    assert evidence["server"]["memory_bytes"] == 2**31
    # The pod sheds what is above its capacity; a slow machine may show less.
    assert 100 < evidence["knee"]["rps"] <= 440
    assert {trial["status"] for trial in evidence["trials"]} >= {"PASS", "FAIL"}
    assert len(jobs.seen) >= len(evidence["trials"])


def test_marina_sends_to_the_pods_of_a_gate_until_it_is_over(service: str, tmp_path: Path) -> None:
    said = StringIO()
    with cluster_with_jobs(tmp_path, service, pods=2) as (fake, jobs):
        cluster = connect(None, fake.kubeconfig)
        spec = load_spec(tmp_path / "spec.yaml")
        load = GateLoad(spec, tmp_path / "build/digits", 20, 600, cluster, Progress(stream=said))
        with load.sending() as sent:
            eventually(lambda: sent.sent > 0)
        assert "marina sends 20 requests/s to each of 2 pods" in said.getvalue()
        assert "note" not in said.getvalue()
        plan = json.loads((tmp_path / f"{jobs.seen[0]['metadata']['name']}.json").read_text(encoding="utf-8"))
        assert [server["name"] for server in plan["request"]["servers"]] == ["digits-1", "digits-2"]
        assert (plan["schedule"]["rate"], plan["schedule"]["duration_s"]) == (40, 600)
        assert fake.names("Job", SPACE) == []


def test_a_load_that_fails_stops_no_gate(service: str, tmp_path: Path) -> None:
    said = StringIO()
    with cluster_with_jobs(tmp_path, service, failing=True) as (fake, _):
        spec, cluster = load_spec(tmp_path / "spec.yaml"), connect(None, fake.kubeconfig)
        with GateLoad(spec, tmp_path / "build/digits", 20, 600, cluster, Progress(stream=said)).sending() as sent:
            eventually(lambda: "marina sends no requests any more: the load cannot run" in said.getvalue())
        assert sent.sent == 0
