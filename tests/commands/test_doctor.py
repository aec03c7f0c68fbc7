"""`marina doctor` on this machine, on a machine that lacks something, and with several kinds of clusters."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_apiserver import FakeCluster
from k8s_rig import put_prometheus
from specs import ROOT
from tools import needs

import marina
from marina.starting import doctor_cluster
from marina.starting.doctor import ProbeResult, examine, missing_locally, report
from marina.starting.doctor_cluster import CLUSTER, _cluster
from marina.starting.doctor_local import LOCAL, CommandFailed, output_of

pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marina", "doctor", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_this_machine_has_everything_that_the_local_flow_needs() -> None:
    needs("g++", package="g++")
    done = run("--json", KUBECONFIG="/none")
    record = json.loads(done.stdout)
    assert (done.returncode, record["local_flow"]) == (0, True)
    findings = {finding["name"]: finding for finding in record["findings"]}
    assert len(findings) >= 13
    needed = [name for name, finding in findings.items() if finding["local"]]
    assert needed == ["python", "java", "torchserve", "torch", "c++ compiler"]
    assert {findings[name]["state"] for name in needed} == {"ok"}
    assert "its operators load" in findings["torch"]["text"]
    # A torchvision whose operators do not load is enough for classifiers.
    assert findings["torchvision"]["state"] in ("ok", "note")
    assert findings["cluster"]["state"] == "missing"


def test_a_missing_program_is_reported_with_what_to_type() -> None:
    done = run("--quiet", JAVA_HOME="/none", CXX="no-such-compiler", KUBECONFIG="/none")
    assert done.returncode == 1
    assert "-- java                `JAVA_HOME`: no `bin/java` in `/none`\n" in done.stdout
    assert "type: unset JAVA_HOME, or point it at a Java 11 or newer\n" in done.stdout
    assert "-- c++ compiler        `no-such-compiler`: not installed\n" in done.stdout
    assert "type: apt-get install g++\n" in done.stdout
    assert done.stdout.endswith("\npackage, serve and loadtest need java, c++ compiler\n")


def test_every_probe_that_finds_nothing_says_which_verbs_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setenv("JAVA_HOME", "/none")
    monkeypatch.setenv("KUBECONFIG", "/none")
    monkeypatch.setattr(sys, "executable", "/none/python")  # in which torch and torchvision are looked for
    for finding in examine([*LOCAL, *CLUSTER]):
        assert finding.state == "ok" or finding.wanted_by, finding


def test_a_port_that_is_taken_is_only_a_note() -> None:
    from marina.starting.doctor_local import _ports

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8090))
        except OSError:
            pass  # Somebody else has it, which does as well.
        else:
            taken.listen()
        (finding,) = _ports()
    assert finding.state == "note"
    assert finding.hint == "marina serve --port-base 8180"
    assert not missing_locally([finding])


def test_the_exit_code_depends_only_on_the_local_flow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = ProbeResult("a", "missing", "none", "image", "apt-get install a")
    monkeypatch.setattr("marina.starting.doctor_local.LOCAL", (lambda: [gone],))
    monkeypatch.setattr("marina.starting.doctor_cluster.CLUSTER", ())
    assert marina.main(["doctor", "--quiet"]) == 0
    monkeypatch.setattr(
        "marina.starting.doctor_local.LOCAL", (lambda: [ProbeResult("b", "broken", "dead", local=True)],)
    )
    assert marina.main(["doctor", "--quiet"]) == 1
    assert "need b" in capsys.readouterr().out


def test_a_report_shows_hints_only_for_missing_programs() -> None:
    fine = ProbeResult("x", "ok", "1.2", "serve", "never shown")
    assert report([fine]).splitlines()[0] == "ok x                   1.2"
    assert "never shown" not in report([fine])


def test_an_interrupt_waits_for_no_probe() -> None:
    released, ended = threading.Event(), threading.Event()

    def hanging() -> list[ProbeResult]:
        released.wait(30)
        ended.set()
        return []

    def interrupting() -> list[ProbeResult]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return []

    with pytest.raises(KeyboardInterrupt):
        examine([hanging, interrupting])
    assert not ended.is_set()
    released.set()


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    script = f"sleep 300 & echo $! > {tmp_path / 'pid'}; wait"
    with pytest.raises(CommandFailed, match=r"no answer in 1 s"):
        output_of("bash", "-c", script, timeout_s=1)
    assert time.monotonic() - began < 60
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_command_that_fails_is_reported_with_its_last_line() -> None:
    with pytest.raises(CommandFailed, match=r"^second$"):
        output_of("bash", "-c", "echo first >&2; echo second >&2; exit 3")
    with pytest.raises(CommandFailed, match=r"^not installed$"):
        output_of("no-such-program")


def states(findings: list[ProbeResult]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


def test_a_cluster_is_asked_for_what_the_manifests_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCluster(tmp_path, groups=("monitoring.coreos.com",)) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        everything = _cluster()
        cluster.metrics_groups.remove("custom.metrics.k8s.io")
        less = _cluster()
    assert set(states(everything).values()) == {"ok"}
    assert "v1.36" in everything[0].text
    assert states(less) == states(everything) | {"pod metrics": "missing"}


def test_the_labels_of_prometheus_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCluster(tmp_path, groups=("monitoring.coreos.com",)) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        put_prometheus(cluster)
        texts = {finding.name: finding.text for finding in _cluster()}
    assert texts["prometheus labels"] == "`monitoring/k8s` selects `release=stack`"


def test_a_cluster_without_the_operator_is_reported_with_the_consequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeCluster(tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        findings: dict[str, Any] = {finding.name: finding for finding in _cluster()}
    operator = findings["prometheus operator"]
    assert (operator.state, operator.text) == ("missing", "the cluster does not serve `monitoring.coreos.com`")
    assert "kube-prometheus-stack" in operator.hint


def test_a_cluster_that_never_answers_does_not_delay_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cluster, "_ANSWER_S", 4)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps(config), encoding="utf-8")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        (finding,) = _cluster()
    assert (finding.state, finding.text) == ("broken", "the kubeconfig's cluster: no answer in 4 s")


def test_what_installs_a_chart_needs_no_other_command_before() -> None:
    hints = [finding.hint or "" for finding in doctor_cluster._api_groups(set())]
    assert len(hints) == 3
    assert all(" --repo https://" in hint and " -n " in hint for hint in hints)
