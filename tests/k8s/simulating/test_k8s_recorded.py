"""Recordings of an autoscaler: decisions that are the same or differ, and files that cannot be read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import marina
from marina.config.errors import InputError
from marina.k8s.simulating import RecordedComparison, compare_recorded, read_recording

FAST = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
RATE = {"type": "Pods", "pods": {"metric": {"name": "rate"}, "target": {"type": "AverageValue", "averageValue": "70"}}}
CPU = {
    "type": "ContainerResource",
    "containerResource": {
        "name": "cpu",
        "container": "server",
        "target": {"type": "Utilization", "averageUtilization": 80},
    },
}
AT_63 = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 63}},
}
WAITING = {
    "type": "External",
    "external": {"metric": {"name": "waiting"}, "target": {"type": "AverageValue", "averageValue": "4"}},
}
SPEC: dict[str, Any] = {
    "minReplicas": 1,
    "maxReplicas": 20,
    "metrics": [RATE, CPU],
    "behavior": {"scaleUp": FAST, "scaleDown": FAST | {"stabilizationWindowSeconds": 60}},
}


def line(
    at: float,
    replicas: int,
    desired: int,
    rate: str | None = "70",
    cpu: int | None = 50,
    *,
    ready: int | None = None,
    spec: dict[str, Any] = SPEC,
    active: str = "True",
    waiting: str | None = None,
) -> dict[str, Any]:
    current: list[dict[str, Any]] = [
        {"type": ""} if rate is None
        else {"type": "Pods", "pods": {"metric": {"name": "rate"}, "current": {"averageValue": rate}}},
        {"type": ""} if cpu is None
        else {"type": "ContainerResource",
              "containerResource": {"name": "cpu", "container": "server",
                                    "current": {"averageUtilization": cpu, "averageValue": f"{20 * cpu}m"}}},
    ]  # fmt: skip
    if waiting:
        current = [
            {"type": "External", "external": {"metric": {"name": "waiting"}, "current": {"averageValue": waiting}}}
        ]
    status = {
        "currentReplicas": replicas,
        "desiredReplicas": desired,
        "currentMetrics": current,
        "conditions": [{"type": "AbleToScale", "status": "True"}, {"type": "ScalingActive", "status": active}],
    }
    return {"at": 1_767_225_600 + at, "spec": spec, "status": status} | ({} if ready is None else {"ready": ready})


def compared(folder: Path, *lines: dict[str, Any]) -> RecordedComparison:
    return compare_recorded(read_recording(written(folder, *lines)))


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "hpa.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def decided(comparison: RecordedComparison) -> list[tuple[float, int, int]]:
    return [(each.seen.at_s, each.seen.desired, each.simulated) for each in comparison.differences]


# Recordings of which every decision is made as recorded.
SAME: dict[str, Sequence[dict[str, Any]]] = {
    "steady": [line(0, 3, 3), line(15, 3, 3, "69500m"), line(30, 3, 3, "72")],
    "up at once": [line(0, 2, 2), line(15, 2, 4, "154"), line(30, 4, 4, "77")],
    "up no faster than twice": [line(0, 2, 2), line(15, 2, 4, "700"), line(30, 4, 8, "700"), line(45, 8, 16, "700"),
                                line(60, 16, 20, "700")],
    "the larger of two": [line(0, 2, 2), line(15, 2, 4, "70", 160)],
    "pods that start count as nothing": [line(0, 2, 2), line(15, 2, 4, "140"), line(30, 4, 4, "140", ready=2)],
    "down after a minute": [line(0, 4, 4), line(15, 4, 4, "35", 10), line(60, 4, 2, "34", 10)],
    "a metric without a value keeps": [line(0, 4, 4), line(100, 4, 4, "35", None, active="False"), line(190, 4, 4)],
    "a metric without a value lets more come": [line(0, 2, 2), line(15, 2, 4, "140", None)],
    "beyond the most": [line(0, 30, 20, None, None, active="False"), line(15, 20, 20)],
    "half a thousandth": [line(0, 3, 3, "77"), line(15, 3, 4, "77001m", 50)],
    # 57 of 63 is within a tenth, and 56 is not.
    "a percentage that floats would cut": [line(0, 10, 10, None, 57, spec=SPEC | {"metrics": [AT_63]}),
                                           line(300, 10, 10, None, 58, spec=SPEC | {"metrics": [AT_63]})],
    "a sum over all pods": [line(0, 2, 2, waiting="4", spec=SPEC | {"metrics": [WAITING]}),
                            line(15, 2, 3, waiting="6", spec=SPEC | {"metrics": [WAITING]})],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_controllers_decisions_are_made_again(name: str, tmp_path: Path) -> None:
    comparison = compared(tmp_path, *SAME[name])
    assert decided(comparison) == []
    assert not comparison.differs


def test_a_different_decision_is_named_and_causes_no_second_one(tmp_path: Path) -> None:
    lines = [line(0, 2, 2), line(120, 2, 3, "154"), line(135, 3, 4, "102"), line(150, 4, 4, "77")]
    comparison = compared(tmp_path, *lines)
    assert decided(comparison) == [(120, 3, 4), (135, 4, 5)]
    assert comparison.differs
    text = comparison.to_text()
    assert "after 2 min: 2 pods, rate 154 of 70, cpu 50 % of 80 %: recorded 3, simulated 4" in text
    assert "`ready` is not recorded" in text
    assert comparison.to_data()["differences"][0]["values"] == {"rate": 154.0, "cpu": 0.5}


def test_a_decision_that_earlier_events_may_explain_is_no_difference(tmp_path: Path) -> None:
    # It had scaled nine seconds before, and doubling twice in 15 s is more than the policy allows.
    early = compared(tmp_path, line(0, 4, 4, "154"), line(9, 4, 8, "155"))
    assert decided(early) == [(0, 4, 8)]
    assert not early.differs
    text = "events before the recording may explain it, the autoscaler remembers 60 s"
    assert text in early.to_text()
    late = compared(tmp_path, line(0, 4, 4, "35", 10), line(90, 4, 4, "34", 10))
    assert late.differs


def test_lines_with_the_same_status_are_one_decision_every_15_seconds(tmp_path: Path) -> None:
    polled = [line(at, 3, 3, ready=3) for at in range(0, 61, 5)]
    comparison = compared(tmp_path, *polled)
    assert (comparison.looks, comparison.undecided) == (5, 0)
    watched = compared(tmp_path, line(0, 3, 3), line(61, 3, 3, "71"))
    assert watched.looks == 5


def test_pods_that_were_not_ready_had_no_metrics(tmp_path: Path) -> None:
    lines = [line(0, 2, 2, ready=2), line(90, 2, 4, "160", ready=2), line(105, 4, 5, "160", ready=2)]
    assert decided(compared(tmp_path, *lines)) == []
    everybody = [{key: value for key, value in each.items() if key != "ready"} for each in lines]
    assert decided(compared(tmp_path, *everybody)) == [(105, 5, 8)]


# Lines of a recording, and part of the error.
REFUSED: list[Any] = [
    (["nonsense"], "hpa.jsonl:1: not a line of JSON"),
    (["[" * 100_000], "hpa.jsonl:1: not a line of JSON"),
    (["[]"], "hpa.jsonl:1: `at`: got `None`, allowed: seconds"),
    ([{"at": 1, "status": {}}], "`spec`: got `None`, allowed: the autoscaler's own"),
    ([line(0, 3, 3)], "holds 1 readings of an autoscaler, allowed: two or more"),
    ([line(10, 3, 3), line(0, 3, 3)], "hpa.jsonl:2: got `at` 1767225600, allowed: ascending times"),
    (
        [line(0, 3, 3), line(9, 3, 3, spec=SPEC | {"maxReplicas": 9})],
        "`spec` differs from the first line's, allowed: one `spec`",
    ),
    (
        [line(0, 3, 3, spec=SPEC | {"metrics": [{"type": "Object"}]})],
        "cannot be replayed, allowed: pod metrics, external",
    ),
    *(
        ([line(0, 3, 3, spec=SPEC | changes)], "cannot be replayed")
        for changes in (
            {"maxReplicas": None},
            {"metrics": [CPU | {"containerResource": {"name": "cpu", "target": {"averageUtilization": 0}}}]},
            {"behavior": {"scaleUp": {"policies": []}}},
            {"behavior": {"scaleUp": {"stabilizationWindowSeconds": None}}},
        )
    ),
    ([line(0, 3, 3) | {"at": 1_767_225_600_000}], "hpa.jsonl:1: `at`: got `1767225600000`, allowed: seconds"),
    ([line(0, 3, 3), line(15, 3, 3) | {"at": float("inf")}], "hpa.jsonl:2: `at`: got `inf`, allowed: seconds"),
    ([line(0, 3, 3), line(9e6, 3, 3)], "hpa.jsonl: spans 104 days, allowed: 35 at most"),
    ([line(0, 3, 3, spec=SPEC | {"metrics": [CPU, CPU]})], "two have the same name: cpu, cpu"),
    ([line(0, 3, 3) | {"ready": float("inf")}], "`status`: not a HorizontalPodAutoscaler's: OverflowError: "),
    ([line(0, 3, 3, rate="many")], "`status`: not a HorizontalPodAutoscaler's: ValueError: "),
]


@pytest.mark.parametrize(("lines", "text"), REFUSED, ids=lambda case: str(case)[:40])
def test_an_unusable_recording_is_refused_with_the_line(lines: list[Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_recording(written(tmp_path, *lines))
    assert text in str(caught.value)


def test_the_verb_exits_with_1_if_a_decision_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = written(tmp_path, *SAME["steady"])
    assert marina.main(["simulate", "--recorded", str(same)]) == 0
    assert "decided as recorded" in capsys.readouterr().out
    other = written(tmp_path, line(0, 2, 2), line(120, 2, 3, "154"))
    assert marina.main(["simulate", "--recorded", str(other), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["differs"], data["differences"][0]["simulated"]) == (True, 4)
