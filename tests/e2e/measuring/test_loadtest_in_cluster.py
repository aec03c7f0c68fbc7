"""`marina loadtest --in-cluster` against an API server that is played; the Job's pods are real processes."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from fake_apiserver import FakeCluster
from fake_apiserver_controllers import KIND
from loadtest_rig import SPEC, running_server
from specs import ROOT

import marina
from config.render import Ports
from marina import in_cluster

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
                if config and job["metadata"]["uid"] not in self._known:
                    self._known.add(job["metadata"]["uid"])
                    self._start(job, config)
            self._report()

    def _start(self, job: dict[str, Any], config: dict[str, Any]) -> None:
        self.seen.append(job)
        name, template = job["metadata"]["name"], job["spec"]["template"]
        file = self._folder / f"{name}.json"
        file.write_text(config["data"]["plan.json"], encoding="utf-8")
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
            self._fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"],
                            "status": {"phase": "Running"}})  # fmt: skip
            output = self._folder / f"{pod}.log"
            plan = str(file) if not self._failing else "/no/such/plan"
            command = [sys.executable, "-m", "loadtest.sending.pod", plan, "--leader", "127.0.0.1", "--port", port]
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
def cluster_with_jobs(folder: Path, url: str, *, failing: bool = False) -> Iterator[tuple[FakeCluster, Jobs]]:
    """A cluster whose one ready pod is the server behind `url`."""
    port = urlsplit(url).port or 0
    labels = {
        f"app.kubernetes.io/{key}": value
        for key, value in (("name", "digits"), ("instance", "digits"), ("component", "inference"))
    }
    with FakeCluster(folder) as fake, Jobs(fake, folder, failing) as jobs:
        fake.backends = {8080: port, 8090: Ports(port).supervisor}
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": "digits-1", "namespace": SPACE, "labels": labels}
        spec = {"containers": [{"name": "server", "image": "server:1"}]}
        fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
        yield fake, jobs


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    with running_server(tmp_path / "build/digits") as url:
        monkeypatch.setattr(in_cluster, "url_of", lambda _: url)
        yield url


def load(folder: Path, fake: FakeCluster, *more: str) -> int:
    options = [
        "--rate",
        "120",
        "--duration",
        "10",
        "--warmup",
        "1",
        "--processes",
        "2",
        "--kubeconfig",
        str(fake.kubeconfig),
    ]
    return marina.main(
        ["loadtest", str(folder / "spec.yaml"), "--out", str(folder / "build"), "--in-cluster", *options, *more]
    )


def test_the_load_comes_from_pods_and_the_verdict_is_made_here(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_with_jobs(tmp_path, service) as (fake, jobs):
        assert load(tmp_path, fake) == 0
        assert "slo: PASS" in capsys.readouterr().out
        verdict = json.loads((tmp_path / "build/digits/verdict.json").read_text(encoding="utf-8"))
        assert verdict["runs"][0]["measurement"]["sent"] == 1200
        assert len(verdict["runs"][0]["measurement"]["generators"]) == 2
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
    with cluster_with_jobs(tmp_path, service) as (fake, _):
        assert load(tmp_path, fake) == 3
    assert "package-differs" in capsys.readouterr().out


def test_a_pod_that_fails_ends_the_load_with_its_last_words(
    service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_with_jobs(tmp_path, service, failing=True) as (fake, jobs):
        assert load(tmp_path, fake) not in (0, 3)
        assert jobs.seen[0]["metadata"]["name"] not in fake.names("Job", SPACE)
    error = capsys.readouterr().err
    assert "the load cannot run: digits-load-" in error
    assert "No such file or directory: '/no/such/plan'" in error


def test_a_dry_run_prints_what_would_be_made(service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del service
    folder = tmp_path / "build"
    assert marina.main(["loadtest", str(tmp_path / "spec.yaml"), "--out", str(folder), "--rate", "5", "--dry-run"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [document["kind"] for document in documents] == ["Job", "ConfigMap", "Service", "NetworkPolicy"]
    assert json.loads(documents[1]["data"]["plan.json"])["schedule"]["rate"] == 5
