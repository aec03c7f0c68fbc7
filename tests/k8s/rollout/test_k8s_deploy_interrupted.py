"""Deploys and rollbacks that end by Ctrl-C, SIGTERM or a kill, or that others undo, and how the next one goes on."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_apiserver_world import Fault
from k8s_rig import NAME, SPACE, Rig, document, documents
from specs import ROOT

from marina.config.errors import Refused
from marina.k8s.cluster import Cluster, Document
from marina.k8s.rollout.hold import Hold
from marina.k8s.rollout.rollback import load_state

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize("which", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_deploy_is_recorded_in_the_cluster_and_the_next_one_continues(
    cluster: Rig, tmp_path: Path, which: signal.Signals
) -> None:
    cluster.deploy(*documents("good:1"))
    code = (
        "import sys; from pathlib import Path; from marina.config.progress import Progress\n"
        "from marina.k8s.cluster import connect\n"
        "from marina.k8s.rollout import Placement, RolloutOptions, deploy\n"
        "from marina.k8s.rollout.release import Release\n"
        "from k8s_rig import documents\n"
        "release = Release(documents('unready:2'), None)\n"
        "placement = Placement(connect(None, Path(sys.argv[1])), 'shells', 'sea', 'spec.yaml')\n"
        "try:\n deploy(placement, release, RolloutOptions(), Progress(), Path(sys.argv[2]))\n"
        "except KeyboardInterrupt:\n sys.exit(130)\n"
    )
    record = tmp_path / "interrupted.json"
    folders = [ROOT / name for name in ("", "tests", "tests/k8s", "tests/fake_cluster")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", code, str(cluster.fake.kubeconfig), str(record)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    for line in process.stderr:
        if "Readiness probe failed" in line:
            break
    process.send_signal(which)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "marina deploy spec.yaml continues, marina rollback spec.yaml goes back to revision 1" in said
    state = cluster.state
    assert (state.phase, state.trying, state.current, state.holder) == ("interrupted", 2, 1, "")
    assert '"result": "interrupted"' in record.read_text()
    assert cluster.status().exit_code == 1
    assert cluster.rollback().revision == 1
    assert cluster.image == "good:1"


@contextmanager
def ctrl_c_after_write(number: int) -> Iterator[None]:
    """Ctrl-C right after the state was written for the given time."""
    replace, writes = Cluster.replace, itertools.count(1)

    def interrupted(connected: Cluster, written: Document) -> Document:
        stored = replace(connected, written)
        if next(writes) == number:
            raise KeyboardInterrupt
        return stored

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize(
    ("write", "phase", "current", "before"),
    [(1, "deployed", 2, 1), (2, "interrupted", 2, 2), (3, "interrupted", 2, 2), (4, "deployed", 3, 2)],
)
def test_ctrl_c_ends_the_hold_at_once_also_while_the_state_is_written(
    cluster: Rig, write: int, phase: str, current: int, before: int
) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    with ctrl_c_after_write(write):
        cluster.deploy(*documents("good:3"))
    assert (cluster.state.phase, cluster.state.current, cluster.state.holder) == (phase, current, "")
    assert cluster.rollback().revision == before


def test_an_interrupted_rollback_names_the_revision_to_which_it_continues(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    with ctrl_c_after_write(2):
        cluster.rollback()
    told = "marina rollback spec.yaml --to 1 continues, marina rollback spec.yaml goes back to revision 2"
    assert cluster.record["next"] == told
    assert cluster.rollback(to=1).revision == 1


def test_a_rollback_that_was_killed_is_continued_by_the_same_command(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        cluster.deploy(*documents(f"good:{number}"))
    monkeypatch.setattr("marina.k8s.rollout.hold.HOLD_S", 0.1)
    monkeypatch.setattr("marina.k8s.rollout.hold._POLL_S", 0.1)
    Hold(cluster.placement.store, load_state(cluster.placement)).save(phase="deploying", trying=2, holder="killed")
    assert cluster.rollback().revision == 2
    assert (cluster.image, cluster.state.current, cluster.state.good) == ("good:2", 2, (3, 1, 2))


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_the_hold_of_a_killed_deploy_ends_once_it_is_seen_unextended_whatever_the_clock_of_its_machine(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    cluster.deploy(*documents("good:1"))
    monkeypatch.setattr("marina.k8s.rollout.history.HOLD_S", ahead_s)
    monkeypatch.setattr("marina.k8s.rollout.hold.HOLD_S", 0.1)
    monkeypatch.setattr("marina.k8s.rollout.hold._POLL_S", 0.1)
    hold = Hold(cluster.placement.store, load_state(cluster.placement))
    hold.save(phase="deploying", trying=2, last=2, holder="killed")
    assert "revision 2 is being changed by killed, unless that was killed: it holds" in cluster.status().to_text()
    assert cluster.deploy(*documents("good:2")).revision == 3
    assert "`shells` is being changed by killed, or was when that was killed: waiting" in cluster.said.getvalue()


def test_a_deployment_that_a_controller_sets_back_during_the_wait_is_not_called_deployed(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    before = cluster.fake.get("Deployment", NAME, SPACE)
    assert before

    def set_back() -> None:
        live = cluster.fake.get("Deployment", NAME, SPACE)
        assert live
        live["spec"]["template"] = before["spec"]["template"]
        cluster.fake.put(live, "gitops-controller")

    cluster.fake.faults.append(Fault("GET", "/pods[?]", act=set_back, passes=True))
    record = cluster.deploy(*documents("good:2"))
    field = '`.spec.template.spec.containers[name="server"].image` belongs to `gitops-controller`'
    assert record.error == f"Deployment shells was changed during the wait: {field}"
    assert (record.running, cluster.state.current) == (1, 1)


def test_a_way_back_that_somebody_blocks_says_who_and_what_to_type(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))

    def break_it() -> None:
        live = cluster.fake.get("Deployment", NAME, SPACE)
        assert live
        live["spec"]["template"]["spec"]["containers"][0]["image"] = "crashing:hotfix"
        cluster.fake.put(live, "kubectl-set")

    cluster.fake.faults.append(Fault("GET", "/pods[?]", act=break_it, passes=True))
    record = cluster.deploy(*documents("good:2"))
    assert record.back
    field = '`.spec.template.spec.containers[name="server"].image` belongs to `kubectl-set`'
    assert record.back.error == f"Deployment shells: {field}; `--force-conflicts` takes them over"
    assert record.next.endswith("or marina rollback spec.yaml --to 1 once it is fixed")


def test_a_deploy_that_slept_while_another_took_the_release_deletes_nothing(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.deploy(*documents("good:1", document("ServiceAccount", "extra")))
    monkeypatch.setattr("marina.k8s.rollout.hold.HOLD_S", 0.1)
    monkeypatch.setattr("marina.k8s.rollout.hold._POLL_S", 0.1)

    def other() -> None:
        cluster.pod.before_answer = None
        cluster.deploy(*documents("good:3", document("ServiceAccount", "extra")))

    cluster.pod.before_answer = other
    with pytest.raises(Refused, match="was changed by somebody else at the same time"):
        cluster.deploy(*documents("good:2"))
    assert cluster.state.current == 3
    assert cluster.record["next"] == ""
    assert "extra" in cluster.fake.names("ServiceAccount", SPACE)
