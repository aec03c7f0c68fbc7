"""The file in which a worker counts how long clients waited for tokens, as the supervisor reads it."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marina.config.histogram import LOWEST_MS, RATIO, Histogram, _edges
from marina.handlers.generation import times
from marina.server.watching import latencies


def test_both_sides_know_the_same_form() -> None:
    assert (times.FOLDER, times.FIGURES, times.BUCKETS) == (
        latencies.TIMES_FOLDER,
        latencies.TIMES_FIGURES,
        latencies.TIMES_BUCKETS,
    )
    assert (LOWEST_MS, RATIO, len(_edges(())) + 1) == (times.LOWEST_MS, times.RATIO, times.BUCKETS)


@pytest.mark.parametrize("value_ms", [0.0, 0.005, 0.01, 0.0101, 1.0, 12.3456, 99_999.0, 600_000.0, 1e9])
def test_a_value_counts_in_its_bucket(value_ms: float) -> None:
    expected = Histogram()
    expected.add(value_ms)
    counts = [0] * times.BUCKETS
    counts[times.bucket(value_ms)] = 1
    made = Histogram.of_counts(counts)
    assert made.to_data()["buckets"] == expected.to_data()["buckets"]


def test_the_page_adds_up_all_workers_also_one_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / times.FOLDER
    health, traffic = SimpleNamespace(workers=list), SimpleNamespace(answers=dict)
    page: Any = latencies.LatenciesPage(traffic, health, "ab", 1.0, lambda: 0, folder)  # type: ignore[arg-type]
    assert page.data()["tokens"] == {}
    for pid in (1, 2):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        worker = times.TokenTimes(folder)
        worker.add("ttft", 0.02)
        worker.add("itl", 0.005)
        worker.add("itl", 0.005)
    tokens = {name: Histogram.from_data(data) for name, data in page.data()["tokens"].items()}
    assert {name: each.count for name, each in tokens.items()} == {"ttft": 2, "itl": 4}
    assert tokens["ttft"].percentile(0.5) == pytest.approx(20, rel=0.01)
    assert math.isclose(tokens["itl"].max_ms, 5, rel_tol=0.01)
