"""The fields of a spec about costs."""

from typing import Any

import pytest
from specs import make_spec

from marina.config.errors import SpecError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cost.pod_hour": 0}, "spec.yaml:6: `cost.pod_hour`: got `0`, allowed: more than 0"),
        (
            {"cost.pod_hour": 1, "cost.currency": "euro"},
            "spec.yaml:7: `cost.currency`: got `euro`, allowed: three capital letters such as `USD`",
        ),
        (
            {"cost.pod_hour": 1, "cost.budget_per_10k": 0},
            "spec.yaml:7: `cost.budget_per_10k`: got `0`, allowed: more than 0",
        ),
    ],
)
def test_an_error_of_cost_says_file_line_value_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(changes)
    assert str(caught.value) == message
