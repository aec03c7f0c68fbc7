import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ONE_INPUT, TinyDouble, ask, start, write_package

from marina.handlers.tensor import TensorHandler

GOOD = b"[[0,1,2],[3,4,5]]"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def handler(tmp_path):
    return start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT))


def value(handler, name, **labels):
    return handler.metrics.registry.get_sample_value(name, {"model": "tiny", **labels})


def test_warm_up_is_not_counted(handler):
    assert value(handler, "inference_batch_size_count") == 0


def test_each_kind_of_error_is_shown_before_its_first(handler):
    kinds = "malformed not_acceptable too_large unsupported unprocessable internal non_finite_output"
    for kind in f"{kinds} answer_too_large overdue out_of_memory".split():
        assert value(handler, "inference_errors_total", kind=kind) == 0


def test_batch_is_counted_by_stage_size_padding_and_kind_of_error(handler):
    handler._batcher.seconds = {4: 1.0}
    ask(handler, GOOD, b"[]", b"{", GOOD)
    ask(handler, GOOD)
    for stage in ("decode", "model", "encode"):
        assert value(handler, "inference_stage_duration_seconds_count", stage=stage) == 2
        assert 0 < value(handler, "inference_stage_duration_seconds_sum", stage=stage) < 10
    assert value(handler, "inference_batch_size_sum") == 5
    assert value(handler, "inference_batch_size_bucket", le="3.0") == 1
    assert value(handler, "inference_padding_rows_total") == 5
    assert value(handler, "inference_errors_total", kind="unprocessable") == 1
    assert value(handler, "inference_errors_total", kind="malformed") == 1


def test_memory_of_the_worker_is_shown(handler):
    assert value(handler, "inference_worker_resident_bytes") > 10_000_000


@pytest.mark.slow
def test_series_of_two_workers_are_merged_from_their_files(handler, tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'tests'); from fakes import *;"
        "from marina.handlers.tensor import TensorHandler;"
        f"handler = start(TensorHandler(), Path({str(handler.directory)!r})); ask(handler, {GOOD!r}, b'[')"
    )
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=shared, check=True)
    page = (
        "import sys; from prometheus_client import CollectorRegistry, generate_latest, multiprocess;"
        "registry = CollectorRegistry(); multiprocess.MultiProcessCollector(registry);"
        "sys.stdout.write(generate_latest(registry).decode())"
    )
    done = subprocess.run([sys.executable, "-c", page], env=shared, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert 'inference_batch_size_sum{model="tiny"} 4.0' in lines
    assert 'inference_errors_total{kind="malformed",model="tiny"} 2.0' in lines
    assert sum(line.startswith("inference_worker_resident_bytes{") for line in lines) == 2
    assert [line for line in lines if line.startswith("inference_artifact_info{") and line.endswith(" 1.0")]
