import pytest
import yaml

from marina.config.errors import SpecError
from marina.config.handler_metrics import render_metrics, torchserves_names

DECLARED = """
dimensions: [&level Level]
ts_metrics: {counter: [{name: ignored, unit: count, dimensions: []}]}
model_metrics:
  counter: [{name: seen, unit: count, dimensions: [*level]}]
  gauge:
"""


def test_what_a_handler_declares_joins_torchserves_own() -> None:
    whole = yaml.safe_load(render_metrics(DECLARED, "metrics.yaml"))
    assert whole["model_metrics"] == {"counter": [{"name": "seen", "unit": "count", "dimensions": ["Level"]}]}
    own = {metric["name"] for metrics in whole["ts_metrics"].values() for metric in metrics}
    assert own == torchserves_names()


def test_a_worker_has_metrics_where_none_are_declared() -> None:
    assert yaml.safe_load(render_metrics("ts_metrics: {}", "metrics.yaml"))["model_metrics"]["gauge"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[seen]", "allowed: `counter`, `gauge`, `histogram`, each with a list", id="no kinds"),
        pytest.param("{timer: []}", "allowed: `counter`, `gauge`, `histogram`, each with a list", id="an unknown kind"),
        pytest.param(
            "{histogram: [{name: a, unit: s, dimensions: [], buckets: [1]}]}",
            "got `buckets`, `dimensions`, `name`, `unit`, allowed: `dimensions`, `name`, `unit`; with anything else "
            "TorchServe reads none of the file",
            id="buckets",
        ),
        pytest.param(
            "{counter: [{name: a, unit: s, dimensions:}]}",
            "allowed: texts for `name` and `unit`, and a list of texts for `dimensions`",
            id="no list",
        ),
        pytest.param(
            "{counter: [{name: a, unit: s, dimensions: []}], gauge: [{name: a, unit: s, dimensions: []}]}",
            "`a` is taken by another metric",
            id="twice",
        ),
        pytest.param(
            "{gauge: [{name: QueueTime, unit: s, dimensions: []}]}",
            "`QueueTime` is taken by another metric",
            id="taken",
        ),
    ],
)
def test_what_would_cost_torchserve_all_metrics_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as error:
        render_metrics(f"model_metrics: {text}", "metrics.yaml")
    assert str(error.value).startswith("metrics.yaml:1: `model_metrics")
    assert str(error.value).endswith(problem)
