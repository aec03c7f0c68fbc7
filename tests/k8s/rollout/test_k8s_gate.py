"""A deploy whose new revision must pass a gate: one pod beside the old ones, judged by what both answered."""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_apiserver_world import Fault
from k8s_rig import NAME, REQUEST, SPACE, Rig, documents, rig
from revisions import Revision, serving
from waiting import eventually

from marina.config.errors import Refused
from marina.k8s.rollout import Gate, RolloutOptions, RolloutRecord, deploy
from marina.k8s.rollout.inference import CanaryRequest
from marina.k8s.rollout.release import Release
from marina.loadtest.gating import LiveGate, LiveLimits, LiveVerdict

LIMITS = LiveLimits(error_rate=0.01, regression=0.2)


class QuickGate(LiveGate):
    """Stands for thirty readings, however long these take."""

    def __init__(self) -> None:
        super().__init__(LIMITS.model_copy(update={"min_requests": 100}), minutes=1)
        self.seconds, self.window_s, self.readings = 1e9, 0.01, 0

    def observe(self, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> None:
        super().observe(old, new)
        self.readings += bool(new)

    def verdict(self, *, over: bool) -> LiveVerdict | None:
        return super().verdict(over=self.readings >= 30)


@dataclass
class Gated:
    """A cluster in which `good:1` serves, and `good:2` is to replace it."""

    rig: Rig
    old: Revision
    new: Revision
    inputs: dict[str, CanaryRequest] = field(default_factory=dict)
    agreement: float | None = None
    load: Any = None
    replicas: int = 3

    def deploy(self, image: str = "good:2", request: CanaryRequest = REQUEST, **options: Any) -> RolloutRecord:
        release = Release(documents(image, replicas=self.replicas), request, {"image": image, "package": image})
        place = self.rig.placement, release, RolloutOptions(**options), self.rig.progress, self.rig.record_file
        return deploy(*place, Gate(QuickGate(), self.inputs, self.agreement, self.load))

    def images(self) -> dict[str, int]:
        pods = [self.rig.fake.get("Pod", name, SPACE) for name in self.rig.fake.names("Pod", SPACE)]
        named = [pod["spec"]["containers"][0]["image"].partition("@")[0] for pod in pods if pod]
        return {image: named.count(image) for image in sorted(set(named))}

    @property
    def spec(self) -> dict[str, Any]:
        live = self.rig.fake.get("Deployment", NAME, SPACE)
        assert live
        return live["spec"]


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    old, new = Revision(), Revision(dice=random.Random(2))
    with ExitStack() as stack:
        for each in (old, new):
            stack.enter_context(serving(each))
        made = stack.enter_context(rig(tmp_path))

        def backend(pod: dict[str, Any]) -> dict[int, int]:
            server = new if "good:2" in pod["spec"]["containers"][0]["image"] else old
            return {8080: server.port, 8090: server.port}

        made.fake.backend_of = backend
        cluster = Gated(made, old, new)
        assert cluster.deploy("good:1").result == "deployed"
        assert "gate stands" not in made.said.getvalue()
        yield cluster


def test_an_equal_revision_is_promoted_and_its_figures_are_kept(gated: Gated) -> None:
    seen: list[dict[str, int]] = []
    gated.new.on_reading = lambda: seen.append(gated.images())
    record = gated.deploy()
    assert record.result == "deployed"
    assert record.gate
    assert record.gate.status == "PASS"
    assert gated.images() == {"good:2": 3}
    assert seen
    assert all(images == {"good:1": 3, "good:2": 1} for images in seen)
    assert not gated.spec.get("paused")
    assert gated.spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge") != 1
    assert gated.rig.record["gate"]["status"] == "PASS"
    figures = gated.rig.record["gate"]["verdict"]["figures"]
    assert [each["figure"] for each in figures] == ["p50", "p99", "errors", "refused"]
    assert "the new revision gets" in gated.rig.said.getvalue()
    assert f"  gate       revision 2: {record.gate.text}" in gated.rig.status().to_text()
    assert gated.rig.status().to_data()["gates"] == {"2": record.gate.text}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"slower": 1.5}, "certainly more than 20 % slower", id="slower"),
        pytest.param({"failed": 0.05}, "certainly more than 1 % on top", id="fails"),
    ],
)
def test_a_worse_revision_goes_back_and_is_not_deployed_again_unknowingly(
    gated: Gated, change: dict[str, float], text: str
) -> None:
    vars(gated.new).update(change)
    record = gated.deploy()
    assert (record.result, record.gate and record.gate.status) == ("failed", "FAIL")
    assert text.replace(" %", "%") in record.error.replace(" %", "%")
    assert record.back
    assert record.back.result == "rolled back"
    assert gated.images() == {"good:1": 3}
    assert not gated.spec.get("paused")
    with pytest.raises(Refused, match="was refused or rolled back: revision 2") as refused:
        gated.deploy()
    assert "--again" in str(refused.value.hint)
    assert "refused    revision 2" in gated.rig.status().to_text()
    vars(gated.new).update(slower=1.0, failed=0.0)
    assert gated.deploy(again=True).result == "deployed"


def test_too_little_traffic_is_no_pass_and_goes_back_but_may_be_tried_again(gated: Gated) -> None:
    gated.new.requests = 0
    record = gated.deploy()
    assert record.gate
    assert record.gate.status == "INVALID"
    assert gated.images() == {"good:1": 3}
    gated.new.requests = 100
    assert gated.deploy().result == "deployed"


def test_a_new_pod_that_was_started_again_fails(gated: Gated) -> None:
    def restart() -> None:
        gated.new.started += 1

    gated.new.on_reading = restart
    record = gated.deploy()
    assert record.gate
    assert record.gate.status == "FAIL"
    assert "was started again" in record.error


def test_pods_without_the_page_of_latencies_stop_the_gate(gated: Gated) -> None:
    gated.old.page = lambda: {"other": 1}  # type: ignore[method-assign]
    record = gated.deploy()
    assert "has no page /latencies" in record.error
    assert gated.images() == {"good:1": 3}


def interrupt(gated: Gated) -> None:
    """Ends a deploy in the middle of its gate."""

    def stop() -> None:
        gated.new.on_reading = lambda: None
        gated.rig.fake.faults.append(Fault("GET", "/deployments/", act=_interrupt, passes=True))

    gated.new.on_reading = stop
    with pytest.raises(KeyboardInterrupt):
        gated.deploy()


def _interrupt() -> None:
    import _thread

    _thread.interrupt_main()


def test_a_deploy_that_was_interrupted_leaves_one_new_pod_and_the_next_continues(gated: Gated) -> None:
    interrupt(gated)
    assert gated.images() == {"good:1": 3, "good:2": 1}
    assert gated.spec["paused"]
    status = gated.rig.status()
    assert "a gate stands: one pod of the new revision serves beside all old ones" in status.to_text()
    (left,) = [name for name in gated.rig.fake.names("Pod", SPACE) if _image(gated, name) == "good:2"]
    seen: list[str] = []
    gated.new.on_reading = lambda: seen.extend(
        name for name in gated.rig.fake.names("Pod", SPACE) if _image(gated, name) == "good:2"
    )
    assert gated.deploy().result == "deployed"
    assert set(seen) == {left}
    assert gated.images() == {"good:2": 3}


def _image(gated: Gated, name: str) -> str:
    pod = gated.rig.fake.get("Pod", name, SPACE)
    return str(pod["spec"]["containers"][0]["image"]).partition("@")[0] if pod else ""


def test_a_rollback_and_a_delete_end_a_gate_that_was_left(gated: Gated) -> None:
    interrupt(gated)
    assert gated.rig.rollback().result == "rolled back"
    eventually(lambda: gated.images() == {"good:1": 3})
    assert not gated.spec.get("paused")
    interrupt(gated)
    assert gated.rig.delete().result == "deleted"


def test_a_gate_that_was_left_by_another_revision_ends_before_the_next_stands(gated: Gated) -> None:
    interrupt(gated)
    seen: list[dict[str, int]] = []
    gated.old.on_reading = lambda: seen.append(gated.images())
    assert gated.deploy("good:3").result == "deployed"
    assert "a pod of yet another revision" in gated.rig.said.getvalue()
    assert all("good:2" not in images for images in seen)
    assert gated.images() == {"good:3": 3}


def test_an_autoscaler_may_scale_while_the_gate_stands(gated: Gated) -> None:
    def scale() -> None:
        gated.new.on_reading = lambda: None
        gated.rig.fake.scale(SPACE, NAME, 9)

    gated.new.on_reading = scale
    seen: list[dict[str, int]] = []
    gated.old.on_reading = lambda: seen.append(gated.images())
    record = gated.deploy(force=True)
    assert record.gate
    assert record.gate.status == "PASS"
    assert {"good:1": 8, "good:2": 2} in seen


def test_one_old_pod_goes_on_beside_one_new_pod(gated: Gated) -> None:
    gated.replicas = 1
    assert gated.deploy("good:1").result == "deployed"
    seen: list[dict[str, int]] = []
    gated.new.on_reading = lambda: seen.append(gated.images())
    assert gated.deploy().result == "deployed"
    assert seen
    assert all(images == {"good:1": 1, "good:2": 1} for images in seen)
    assert gated.images() == {"good:2": 1}
    assert "minReadySeconds" not in gated.spec


def test_another_answer_to_the_sample_is_shown(gated: Gated) -> None:
    gated.new.answer = "cockle"
    assert gated.deploy().result == "deployed"
    said = gated.rig.said.getvalue()
    assert 'answers the sample with {"top": "cockle"}\n' in said
    assert 'and the old one with {"top": "whelk"}' in said


def test_a_pod_with_another_package_fails_before_anything_is_compared(gated: Gated) -> None:
    gated.new.sha256 = "cd" * 32
    record = gated.deploy()
    assert record.gate
    assert record.gate.status == "FAIL"
    assert "answered by package cdcdcdcdcdcd" in record.error
    assert gated.images() == {"good:1": 3}


def test_without_a_change_of_the_pods_there_is_no_gate(gated: Gated) -> None:
    record = gated.deploy("good:1")
    assert (record.result, record.gate) == ("unchanged", None)


def recorded(answer: str) -> CanaryRequest:
    return replace(REQUEST, answer=json.dumps({"top": answer}).encode())


def test_a_pod_that_answers_otherwise_than_its_package_recorded_is_refused(gated: Gated) -> None:
    gated.new.answer = "cockle"
    record = gated.deploy(request=recorded("whelk"))
    assert record.gate
    assert record.gate.status == "FAIL"
    assert 'answered with {"top": "cockle"}, but its package recorded {"top": "whelk"}' in record.error
    assert "`marina deploy --accept other-answer` takes it" in record.error
    assert gated.images() == {"good:1": 3}
    assert gated.deploy(request=recorded("whelk"), again=True, accepted=("other-answer",)).result == "deployed"
    # It was accepted, so it is not asked for again.
    gated.deploy("good:3", again=True)
    assert gated.rig.rollback().result == "rolled back"


def test_a_revision_that_is_gone_back_to_is_held_to_its_recorded_answer(gated: Gated) -> None:
    gated.new.answer = "cockle"
    record = gated.deploy(request=recorded("cockle"))
    assert record.result == "deployed"
    assert gated.deploy("good:3").result == "deployed"
    gated.new.answer = "limpet"
    assert "but its package recorded" in gated.rig.rollback().error


@pytest.mark.parametrize(("agreement", "result"), [(None, "deployed"), (0.75, "deployed"), (0.76, "failed")])
def test_both_revisions_are_asked_the_same_and_only_a_wanted_agreement_refuses(
    gated: Gated, agreement: float | None, result: str
) -> None:
    gated.inputs = {name: replace(REQUEST, body=name.encode(), sha256=None) for name in ("a", "b", "c", "odd")}
    gated.agreement, gated.new.otherwise = agreement, {b"odd": "cockle"}
    record = gated.deploy()
    assert record.result == result
    assert record.gate
    assert "3 of 4 inputs answered alike, not odd" in gated.rig.said.getvalue()
    assert gated.rig.record["gate"]["answers"] == {"inputs": 4, "same": 3, "differing": ["odd"]}
    if result == "failed":
        assert "FAIL: 3 of 4 inputs answered alike, not odd, needed: 0.76 of them" in record.error
        assert gated.images() == {"good:1": 3}


def test_requests_of_marinas_own_are_sent_while_the_gate_stands_and_counted_as_such(gated: Gated) -> None:
    seen = list[str]()

    @contextmanager
    def load() -> Iterator[Any]:
        seen.append(f"begins beside {gated.images()}")
        yield SimpleNamespace(sent=1234)
        seen.append("ends")

    gated.load = load
    record = gated.deploy()
    assert record.gate
    assert record.gate.text.endswith("; of the requests of both, marina sent 1,234")
    assert gated.rig.record["gate"]["sent"] == 1234
    assert seen == ["begins beside {'good:1': 3, 'good:2': 1}", "ends"]
