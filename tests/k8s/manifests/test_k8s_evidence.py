"""Evidence from a machine that differs from a pod is refused, unless the difference is accepted by name; so is evidence
that nothing can be derived from."""

from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, LATENCIES, MACHINE, fill, planned
from specs import digits_spec

from marina.config.errors import InputError
from marina.k8s.manifests import check_evidence, make_plan
from marina.k8s.manifests.notes import notes

PROCESSOR = MACHINE["processor"]


def measured(cores: float) -> dict[str, Any]:
    """Evidence of a server that could use these cores; the other values are not read."""
    server = {"by": "affinity", "cores": cores, "memory_bytes": None, "machine": MACHINE}
    return EVIDENCE | {"server": server}


def refused(cores: float, changes: dict[str, Any], *accepted: str) -> InputError:
    plan = planned(changes, evidence=measured(cores))
    with pytest.raises(InputError) as raised:
        check_evidence(plan.spec, plan.evidence, accepted)
    return raised.value


def test_evidence_with_another_number_of_cores_is_refused() -> None:
    error = refused(1, {"kubernetes.resources.cpu": "2"})
    assert "measured with 1 cores, a pod has 2 (`kubernetes.resources.cpu`)" in error.message
    assert "--accept evidence-cores" in str(error.hint)


def test_evidence_of_another_processor_is_refused_if_the_spec_names_one() -> None:
    error = refused(2, {"kubernetes.resources.processor": "Another"})
    assert f"measured on `{PROCESSOR}`, pods run on `Another`" in error.message
    assert "--accept evidence-processor" in str(error.hint)


@pytest.mark.parametrize(
    ("cores", "changes", "accepted"),
    [
        (2, {}, ()),
        (2, {"kubernetes.resources.processor": PROCESSOR}, ()),
        (1, {}, ("evidence-cores",)),
        (2, {"kubernetes.resources.processor": "Another"}, ("evidence-processor",)),
    ],
)
def test_evidence_of_a_matching_machine_or_with_an_accepted_difference_is_used(
    cores: float, changes: dict[str, Any], accepted: tuple[str, ...]
) -> None:
    plan = planned(changes, evidence=measured(cores))
    check_evidence(plan.spec, plan.evidence, accepted)


def test_accepting_one_difference_accepts_no_other() -> None:
    refused(1, {"kubernetes.resources.processor": PROCESSOR}, "evidence-processor")


def test_for_a_server_that_was_already_running_the_cores_of_the_generator_are_noted() -> None:
    plan = planned({"kubernetes.resources.cpu": "3"}, evidence=EVIDENCE)
    check_evidence(plan.spec, plan.evidence, ())
    assert any("measured with 2 cores, a pod has 3" in note.text for note in notes(plan))


@pytest.mark.parametrize(
    "changes",
    [
        {"knee": {"rps": 0}},
        {"knee": {"rps": float("nan")}},
        {"cold_start_s": float("inf")},
        {"cold_start_s": -5},
        {"memory": EVIDENCE["memory"] | {"java_bytes": -1}},
    ],
    ids=str,
)
def test_evidence_of_an_impossible_measurement_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"evidence\.json: not a record of this version"):
        planned(evidence=EVIDENCE | changes)


def test_a_knee_that_somebody_wrote_into_the_evidence_is_refused() -> None:
    at_knee = {"at_70_percent": {"rate": 0.7 * EVIDENCE["knee"]["rps"], "status": "PASS", "response": LATENCIES}}
    assert planned(evidence=EVIDENCE | at_knee).evidence
    with pytest.raises(InputError, match=r"`knee\.rps`: got 500, but .* was measured: it was edited") as error:
        planned(evidence=EVIDENCE | at_knee | {"knee": EVIDENCE["knee"] | {"rps": 500}})
    assert str(error.value.hint).endswith("to go without, and set `scaling.target`")


def test_evidence_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, digits_spec())
    (tmp_path / "evidence.json").mkdir()
    with pytest.raises(InputError, match=r"evidence\.json: cannot be read: Is a directory"):
        make_plan(digits_spec(), tmp_path)
