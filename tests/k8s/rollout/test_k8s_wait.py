"""The wait for pods, with a clock and views of the cluster that the test makes."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from marina.config.progress import Progress
from marina.k8s.cluster import Ref
from marina.k8s.rollout import wait
from marina.k8s.rollout.diagnosis import DeploymentView
from marina.k8s.rollout.wait import WaitResult

DEPLOYMENT = Ref("apps/v1", "Deployment", "n", "d")
# The clock that a test sees goes on by this for each look at the cluster.
LOOK_S = 40.0


def view(
    *, replicas: int, generation: int, observed: int, available: int, given_up: str | None = None
) -> DeploymentView:
    status: dict[str, Any] = {"observedGeneration": observed, "updatedReplicas": replicas, "replicas": replicas}
    condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    status["conditions"] = [condition | {"lastTransitionTime": given_up}] if given_up else []
    metadata = {"name": "d", "uid": "d", "generation": generation}
    return DeploymentView(
        {"metadata": metadata, "spec": {"replicas": replicas}, "status": status | {"availableReplicas": available}}
    )


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WaitResult]:
    """Waits for a Deployment that looks one way after the other."""

    def waiting(*views: DeploymentView, new: bool = False) -> WaitResult:
        looks, clock = iter(views), count(0, LOOK_S)
        monkeypatch.setattr(wait, "read_view", lambda *_: next(looks))
        monkeypatch.setattr("marina.k8s.rollout.wait.time.sleep", lambda _: None)
        monkeypatch.setattr("marina.k8s.rollout.wait.time.monotonic", lambda: next(clock))
        return wait.wait(None, DEPLOYMENT, Progress(quiet=True), timeout_s=None, new=new)  # type: ignore[arg-type]

    return waiting


def test_an_autoscaler_that_adds_pods_late_in_a_rollout_does_not_end_it(follow: Callable[..., WaitResult]) -> None:
    result = follow(
        view(replicas=1, generation=2, observed=2, available=0),
        view(replicas=1, generation=2, observed=2, available=0),
        view(replicas=3, generation=3, observed=2, available=0),  # the controller has not seen this yet
        view(replicas=3, generation=3, observed=3, available=3),
    )
    assert (result.complete, result.summary) == (True, "3 of 3 pods available")
    assert result.seconds == 4 * LOOK_S


def test_a_controller_that_stops_during_a_rollout_ends_it_after_a_minute(follow: Callable[..., WaitResult]) -> None:
    unnoticed = view(replicas=3, generation=3, observed=2, available=0)
    result = follow(view(replicas=1, generation=2, observed=2, available=0), unnoticed, unnoticed)
    assert (result.complete, result.seconds) == (False, 3 * LOOK_S)
    assert result.summary == "no controller noticed the change within 60 s: is one running?"


def test_pods_of_the_revision_before_do_not_end_the_wait(follow: Callable[..., WaitResult]) -> None:
    old = view(replicas=1, generation=2, observed=1, available=1)  # the status is that before the change
    result = follow(old, view(replicas=1, generation=2, observed=2, available=1))
    assert (result.complete, result.seconds) == (True, 2 * LOOK_S)


def test_a_deadline_that_the_rollout_before_exceeded_does_not_end_a_new_one(follow: Callable[..., WaitResult]) -> None:
    # The controller takes the condition back only when pods of the new rollout are there.
    noticed = view(replicas=2, generation=3, observed=3, available=1, given_up="12:00")
    done = view(replicas=2, generation=3, observed=3, available=2)
    assert follow(noticed, done, new=True).complete
    said = "0 of 2 new pods ready (2 created), no progress for 600 s"
    over = follow(noticed, noticed)
    assert (over.summary, over.seconds) == (said, LOOK_S)
    again = view(replicas=2, generation=3, observed=3, available=1, given_up="12:10")
    assert follow(noticed, again, new=True).summary == said
    never = follow(*[noticed] * 20, new=True)
    assert (never.summary, never.seconds) == (said, 15 * LOOK_S)
