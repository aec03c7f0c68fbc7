"""The fake Deployment controller decides as Kubernetes' own does."""

from pathlib import Path
from typing import Any

import pytest
from fake_apiserver import FakeCluster
from fake_apiserver_rolling import Limits, Size, next_sizes
from k8s_rig import NAME, SPACE, deployment
from waiting import eventually


def new(replicas: int, available: int | None = None, wanted: int = 10, most: int = 12) -> Size:
    return Size("new", replicas, replicas if available is None else available, wanted, most, age=2)


def old(replicas: int, available: int | None = None, wanted: int = 10, most: int = 12, name: str = "old") -> Size:
    return Size(name, replicas, replicas if available is None else available, wanted, most, age=1)


@pytest.mark.parametrize(
    ("surge", "of_old", "of_new", "then"),
    [(0, 10, 0, 0), (2, 10, 0, 2), (2, 5, 0, 7), (2, 10, 2, 2), (2, 2, 11, 10)],
)
def test_new_pods_are_added_as_far_as_the_surge_allows(surge: int, of_old: int, of_new: int, then: int) -> None:
    # Old pods stay, because none may be missing.
    assert next_sizes(Limits(10, surge, 0), new(of_new, 0), [old(of_old)])["new"] == then


@pytest.mark.parametrize(
    ("unavailable", "of_old", "of_new", "then"),
    [
        pytest.param(0, old(10), new(0), 10, id="none may be missing"),
        pytest.param(2, old(10), new(0), 8, id="two may"),
        pytest.param(2, old(10, 8), new(0), 8, id="the two that are not available go first"),
        pytest.param(2, old(10, 9), new(0), 8, id="one that is not available and one that is"),
        pytest.param(2, old(8), new(2, 0), 8, id="new ones that are not available count as missing"),
        pytest.param(0, old(10), new(2), 8, id="as many as are available of the new ones"),
    ],
)
def test_old_pods_go_as_far_as_enough_are_available(unavailable: int, of_old: Size, of_new: Size, then: int) -> None:
    # Without room for more new ones.
    room = of_new.replicas + of_old.replicas - 10
    assert next_sizes(Limits(10, room, unavailable), of_new, [of_old])["old"] == then


def test_a_paused_deployment_with_two_revisions_keeps_both_as_they_are() -> None:
    limits = Limits(3, 1, 0, paused=True)
    both = new(1, wanted=3, most=4), [old(3, wanted=3, most=4)]
    assert next_sizes(limits, *both) == {"old": 3, "new": 1}
    assert next_sizes(Limits(3, 1, 0), *both) == {"old": 2, "new": 1}


@pytest.mark.parametrize(
    ("replicas", "then"),
    [
        pytest.param(5, {"old": 5, "new": 1}, id="rounded, the largest first, both might have had one more"),
        pytest.param(9, {"old": 8, "new": 2}, id="the new one may get more than its share"),
        pytest.param(2, {"old": 2, "new": 1}, id="fewer"),
        pytest.param(0, {"old": 0, "new": 0}, id="none"),
    ],
)
def test_scaling_in_the_middle_of_an_update_is_divided_in_proportion(replicas: int, then: dict[str, int]) -> None:
    limits = Limits(replicas, 1, 0, paused=True)
    assert next_sizes(limits, new(1, wanted=3, most=4), [old(3, wanted=3, most=4)]) == then


def test_a_paused_deployment_of_one_revision_is_scaled_as_any_other() -> None:
    assert next_sizes(Limits(5, 2, 0, paused=True), None, [old(3, wanted=3, most=5)]) == {"old": 5}


def test_shares_round_up_surges_and_down_what_may_be_missing() -> None:
    assert Limits.of({"replicas": 3}) == Limits(3, 1, 0)
    rolling = {"maxSurge": "50%", "maxUnavailable": "50%"}
    assert Limits.of({"replicas": 3, "strategy": {"rollingUpdate": rolling}}) == Limits(3, 2, 1)
    nothing = {"maxSurge": 0, "maxUnavailable": 0}
    assert Limits.of({"replicas": 3, "strategy": {"rollingUpdate": nothing}}) == Limits(3, 0, 1)


def test_the_controllers_hold_a_paused_update_and_scale_it(tmp_path: Path) -> None:
    """A pause that comes while the first new pod starts keeps it beside all old ones, until it ends."""
    with FakeCluster(tmp_path) as fake:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})

        def put(image: str, **spec: Any) -> None:
            made = deployment(image, replicas=3)
            rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
            fake.put(made | {"spec": made["spec"] | {"strategy": rolling, **spec}}, manager="kubectl")

        def images() -> dict[str, int]:
            pods = [fake.get("Pod", name, SPACE) for name in fake.names("Pod", SPACE)]
            named = [pod["spec"]["containers"][0]["image"].partition("@")[0] for pod in pods if pod]
            return {image: named.count(image) for image in sorted(set(named))}

        put("good:1")
        eventually(lambda: images() == {"good:1": 3})
        put("slow:2", paused=True)
        put("slow:2", paused=False)
        eventually(lambda: images() == {"good:1": 3, "slow:2": 1})
        put("slow:2", paused=True)
        fake.scale(SPACE, NAME, 5)
        eventually(lambda: images() == {"good:1": 5, "slow:2": 1})
        put("slow:2", paused=False)
        eventually(lambda: images() == {"slow:2": 3})
