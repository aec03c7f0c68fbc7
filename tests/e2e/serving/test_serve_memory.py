import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from conftest import Start
from hostile import exchange, posted, read_answer
from load import Load
from running import Running
from troubles import shows
from waiting import DIGIT, ask, eventually, java_pid, metric, worker_pids

pytestmark = pytest.mark.e2e

LEAK = b'{"sleep_s": 0.005, "leak_mb": 2}'
LARGE = b'{"sleep_s": 0.1}'.ljust(9_900_000)


def test_growing_workers_are_renewed_under_load_without_a_failed_request(start_tiny: Start) -> None:
    server = start_tiny(workers=2, max_worker_memory_mb=150, max_batch=4)
    with Load(server.ports.inference, "/predictions/tiny", LEAK, 60) as load:
        eventually(lambda: metric(server, "marina_worker_renewals_total") >= 4, within_s=60)
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
    assert metric(server, "marina_worker_renewals_total") == 1
    assert metric(server, "marina_worker_resident_memory_bytes") < 150e6
    assert ask(server, b"{}") == 200


def test_limit_below_what_the_model_needs_renews_each_worker_once(start_digits: Start) -> None:
    server = start_digits(workers=2, max_worker_memory_mb=1)
    with Load(server.ports.inference, "/predictions/digits", DIGIT, 50, "image/png") as load:
        eventually(lambda: metric(server, "marina_worker_renewals_total") == 2, within_s=120)
        sent = len(load.sent)
        eventually(lambda: len(load.sent) > sent + 150)
        assert set(load.finish()) == {"200"}
    assert metric(server, "marina_worker_renewals_total") == 2
    assert metric(server, "marina_worker_renewals_failed_total") == 0
    assert metric(server, "marina_worker_restarts_total") == 0


def test_more_large_bodies_than_java_has_memory_for_are_refused_and_end_nothing(module_tiny: Running) -> None:
    java, workers = java_pid(module_tiny), worker_pids(module_tiny)
    assert module_tiny.spec.serving.java_heap_mb < 40 * 9.9 / 2
    request = posted("/predictions/tiny", b"", LARGE)
    with ThreadPoolExecutor(40) as pool:
        exchanges = [pool.submit(exchange, module_tiny.ports.inference, request) for _ in range(40)]
        answers = {each.result().status: each.result().body.decode() for each in exchanges}
    assert answers.keys() == {200, 503}
    shows("large-bodies", answers[503])
    assert (java_pid(module_tiny), worker_pids(module_tiny)) == (java, workers)


def test_more_large_answers_in_a_batch_than_java_has_memory_for_are_refused_and_end_nothing(start_tiny: Start) -> None:
    server = start_tiny(max_batch=8, max_batch_delay_ms=1000, p99_ms=5000)
    assert server.spec.serving.java_heap_mb < 8 * 9 * 2
    java, workers = java_pid(server), worker_pids(server)
    request = posted("/predictions/tiny", b"", b'{"answer_mb": 9}')
    with ThreadPoolExecutor(8) as pool:
        exchanges = [pool.submit(exchange, server.ports.inference, request) for _ in range(8)]
        answers = {each.result().status: each.result().body.decode() for each in exchanges}
    assert answers.keys() == {200, 503}
    shows("large-bodies", answers[503])
    assert (java_pid(server), worker_pids(server)) == (java, workers)


def test_many_of_the_largest_answers_that_a_spec_allows_end_nothing(start_tiny: Start) -> None:
    server = start_tiny(workers=3)
    java = java_pid(server)
    request = posted("/predictions/tiny", b"", b'{"answer_mb": 20}')
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: exchange(server.ports.inference, request), range(24)))
    # An answer that is sent slowly may make room for others.
    assert {answer.status for answer in answers} <= {200, 503, 507}
    told = {answer.error["error"] for answer in answers if answer.status == 507}
    assert told <= {"out of memory: the answer is too large for `serving.java_heap_mb`"}
    assert (ask(server, b"{}"), java_pid(server)) == (200, java)


def test_slow_bodies_make_room_for_others(module_tiny: Running) -> None:
    java, workers = java_pid(module_tiny), worker_pids(module_tiny)
    with ExitStack() as kept:
        slow = [
            kept.enter_context(socket.create_connection(("127.0.0.1", module_tiny.ports.inference), timeout=60))
            for _ in range(12)
        ]
        for connection in slow:
            with suppress(ConnectionError):
                connection.sendall(posted("/predictions/tiny", b"", LARGE)[:-1])
        eventually(lambda: ask(module_tiny, LARGE) == 200)
        assert b"too many large bodies" in read_answer(slow[0]).body
    assert (java_pid(module_tiny), worker_pids(module_tiny)) == (java, workers)


def test_requests_sent_ahead_of_an_answer_take_little_memory(module_tiny: Running) -> None:
    java = java_pid(module_tiny)
    with ExitStack() as kept:
        for sleep_s in (3, *[0] * 179):
            # So large that Java then reads as much at once as it ever does.
            first = posted("/predictions/tiny", b"", (b'{"sleep_s": %d}' % sleep_s).ljust(100_000))
            eager = kept.enter_context(socket.create_connection(("127.0.0.1", module_tiny.ports.inference), timeout=60))
            eager.sendall(first + b"GET /v2 HTTP/1.1\r\n%s\r\n" % (b"A:\r\n" * 150) * 150)
        assert ask(module_tiny, b"{}") == 200
    assert java_pid(module_tiny) == java


def test_answers_that_nobody_reads_make_room_for_others(module_tiny: Running) -> None:
    java, workers = java_pid(module_tiny), worker_pids(module_tiny)
    with ExitStack() as kept:
        for _ in range(40):
            deaf = kept.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", module_tiny.ports.inference))
            deaf.sendall(posted("/predictions/tiny", b"", b'{"answer_mb": 6}'))
        assert ask(module_tiny, b"{}") == 200
    assert (java_pid(module_tiny), worker_pids(module_tiny)) == (java, workers), module_tiny.tail(200)
