"""What a spec means where it says nothing, and what holds for all of its fields."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import DIGITS, MINIMAL, ROOT, make_spec

from marina.config.load import load_spec, parse_spec
from marina.config.quantity import quantity
from marina.config.sections import Section
from marina.config.spec import Spec


def test_five_lines_are_enough_for_a_spec() -> None:
    text = "name: shells\nmodel:\n  source: torchvision:resnet18\n  weights: random\nslo: {p99_ms: 50}\n"
    spec = parse_spec(text, Path("spec.yaml"))
    assert (spec.workers, spec.threads, spec.max_batch) == (2, 1, 4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"kubernetes.resources.cpu": "4"}, (4, 1), id="a worker for each core"),
        pytest.param({"kubernetes.resources.cpu": 4}, (4, 1), id="a number without quotes"),
        pytest.param({"kubernetes.resources.cpu": "4", "serving.threads": 2}, (2, 2), id="threads given"),
        pytest.param({"kubernetes.resources.cpu": "4", "serving.workers": 1}, (1, 4), id="workers given"),
        pytest.param({"kubernetes.resources.cpu": "500m"}, (1, 1), id="half a core"),
        pytest.param(
            {"serving.device": "cuda", "kubernetes.resources": {"gpu": 2, "cpu": 8}}, (2, 4), id="a worker for each GPU"
        ),
    ],
)
def test_auto_uses_the_whole_cpu_limit(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    spec = make_spec(changes)
    assert (spec.workers, spec.threads) == expected


@pytest.mark.parametrize("example", sorted(DIGITS.parent.parent.glob("*/spec.yaml")), ids=lambda file: file.parent.name)
def test_a_completed_spec_stays_the_same_when_it_is_completed_again(example: Path) -> None:
    completed = load_spec(example).completed()
    again = parse_spec(yaml.safe_dump(completed), example)
    assert again.completed() == completed


@pytest.mark.parametrize(
    "changes",
    [
        {"kubernetes.model": {"url": "https://models.example.org/digits.mar"}},
        {"kubernetes.network": {"policy": False}},
        {"kubernetes.pod.env": {"A": "y", "B": "1e3", "C": "12:30", "D": "0644", "E": "2026-01-01"}},
    ],
)
def test_a_completed_spec_can_be_read_again(changes: dict[str, Any]) -> None:
    completed = make_spec(changes).completed()
    assert parse_spec(yaml.safe_dump(completed), Path("spec.yaml"), files=False).completed() == completed


def test_quantities_need_no_quotes() -> None:
    bare = {"cpu": 2, "memory": 2**31}
    resources = make_spec({"kubernetes.resources": bare}).kubernetes.resources
    assert (resources.cpu, resources.memory) == ("2", "2147483648")


@pytest.mark.parametrize("name", ["digits", "resnet50", "custom"])
def test_the_examples_are_valid(name: str) -> None:
    assert load_spec(ROOT / f"config/examples/{name}/spec.yaml").name


def sections(kind: type[Section] = Spec) -> set[type[Section]]:
    return {kind} | {below for child in Section.__subclasses__() for below in (child,)}


@pytest.mark.parametrize("section", sorted(sections(), key=lambda kind: kind.__name__))
def test_every_section_is_frozen_and_refuses_unknown_keys(section: type[Section]) -> None:
    assert section.model_config["frozen"]
    assert section.model_config["extra"] == "forbid"


@pytest.mark.parametrize("section", sorted(sections(), key=lambda kind: kind.__name__))
def test_every_field_is_documented(section: type[Section]) -> None:
    assert [name for name, field in section.model_fields.items() if not field.description] == []


QUANTITIES = {"500m": 0.5, "2": 2, "1.5": 1.5, "2Gi": 2**31, "3k": 3000, "1e3": 1000, "1.5e-1": 0.15, ".5": 0.5}
QUANTITIES |= {"2.": 2, "1E": 1e18, "5u": 5e-6, "1.5Gi": 1.5 * 2**30, "1Ei": 2**60}


@pytest.mark.parametrize(("text", "value"), QUANTITIES.items())
def test_a_quantity_is_a_number(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "m", ".", "1.2.3m", "2GB", "-1", "1e", "1e3k", "1K", "1 Gi", "٣", "1e99", "9" * 5000]
)
def test_text_that_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Kubernetes quantity"):
        quantity(text)


def test_the_smallest_spec_has_no_objective() -> None:
    assert "slo" not in MINIMAL
    assert make_spec().slo is None
