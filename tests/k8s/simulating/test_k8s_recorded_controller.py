"""The simulation makes the decisions that the HorizontalPodAutoscaler's controller of Kubernetes 1.36 made every 15 s.

The autoscalers are Marina's own for the digits example at 70 requests/s, with various windows, policies, tolerances and
bounds. Pods took a while to start; metrics appeared, disappeared, and lay at the edge of the tolerance.
"""

import json
from pathlib import Path

import pytest

from marina.k8s.simulating import compare_recorded, read_recording

RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.jsonl"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_each_decision_of_a_real_controller_is_made_again(file: Path) -> None:
    comparison = compare_recorded(read_recording(file))
    assert [
        (difference.seen.at_s, difference.seen.desired, difference.simulated) for difference in comparison.differences
    ] == []
    assert comparison.looks - comparison.undecided >= 19


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_the_controller_scaled_in_each_recording(file: Path) -> None:
    statuses = [json.loads(text)["status"] for text in file.read_text(encoding="utf-8").splitlines()]
    assert any(
        status["desiredReplicas"] not in (0, status["currentReplicas"]) for status in statuses if len(status) > 2
    )
