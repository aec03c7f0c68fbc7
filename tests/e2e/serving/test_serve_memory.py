import pytest
from conftest import Start
from load import Load
from waiting import DIGIT, ask, eventually, metric

pytestmark = pytest.mark.e2e

LEAK = b'{"sleep_s": 0.005, "leak_mb": 2}'


def test_growing_workers_are_renewed_under_load_without_a_failed_request(start_tiny: Start) -> None:
    server = start_tiny(workers=2, max_worker_memory_mb=150, max_batch=4)
    with Load(server.ports.inference, "/predictions/tiny", LEAK, 60) as load:
        eventually(lambda: metric(server, "marina_worker_recycles_total") >= 4, within_s=60)
        outcomes = load.finish()
    assert set(outcomes) == {"200"}
    assert metric(server, "marina_worker_restarts_total") == 0
    eventually(lambda: "is renewed" in server.log.read_text())
    eventually(lambda: metric(server, "ts_inference_requests_total") == len(load.sent))


def test_idle_worker_is_renewed_too_and_the_only_one_is_not_ready_meanwhile(start_tiny: Start) -> None:
    server = start_tiny(max_worker_memory_mb=150, environment={"TINY_LOAD_S": "1"})
    assert ask(server, b'{"leak_mb": 200}') == 200
    missing = eventually(lambda: server.readiness()[1]["missing"])
    assert missing == ["the only worker is being renewed"]
    server.wait_ready(180)
    assert metric(server, "marina_worker_recycles_total") == 1
    assert metric(server, "marina_worker_resident_memory_bytes") < 150e6
    assert ask(server, b"{}") == 200


def test_limit_below_what_the_model_needs_renews_each_worker_once(start_digits: Start) -> None:
    server = start_digits(workers=2, max_worker_memory_mb=1)
    with Load(server.ports.inference, "/predictions/digits", DIGIT, 50, "image/png") as load:
        eventually(lambda: metric(server, "marina_worker_recycles_total") == 2, within_s=120)
        sent = len(load.sent)
        eventually(lambda: len(load.sent) > sent + 150)
        assert set(load.finish()) == {"200"}
    assert metric(server, "marina_worker_recycles_total") == 2
    assert metric(server, "marina_worker_recycles_failed_total") == 0
    assert metric(server, "marina_worker_restarts_total") == 0
