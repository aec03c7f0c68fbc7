import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from conftest import Start
from hostile import SECRET, exchange, posted, read_answer, uncounted
from running import Running
from waiting import ask, eventually, java_pid, metric, worker_pids

from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e
KINDS = uncounted("tiny")
PATH = "/predictions/tiny"


@pytest.fixture(scope="module")
def server(module_tiny: Running) -> Iterator[Running]:
    return module_tiny


@pytest.mark.parametrize("kind", KINDS)
def test_what_torchserve_cannot_take_is_answered_in_the_kits_form_and_nothing_is_open(
    kind: str, server: Running
) -> None:
    request, status = KINDS[kind]
    before = server.log.stat().st_size
    answer = exchange(server.ports.inference, request)
    assert answer.status == status
    assert SECRET not in answer.body
    assert b"xception" not in answer.body
    if status >= 400:
        assert answer.error["error"]
        assert answer.headers["connection"] == "close"
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    assert ask(server, b"{}") == 200
    logged = server.log.read_bytes()[before:]
    assert len(logged) < 2000
    assert b"\x1b" not in logged
    if kind not in ("escape bytes", "long line"):
        assert SECRET not in logged


def test_an_error_for_which_java_has_no_words_is_none_of_javas_either(server: Running) -> None:
    # What is thrown very often loses its message: HotSpot throws one that was made before.
    said = b'{"say": {"code": 500, "type": "ArrayIndexOutOfBoundsException"}}'
    answer = exchange(server.ports.inference, posted(PATH, b"", said))
    assert (answer.status, answer.error) == (500, {"error": "internal error"})
    part = b'--b\r\nContent-Disposition: form-data; name="data"\r\n\r\n' + said + b"\r\n--b--\r\n"
    of_parts = posted(PATH, b"Content-Type: multipart/form-data; boundary=b\r\n", part)
    assert exchange(server.ports.inference, of_parts).status == 400


def test_multipart_bodies_that_cannot_be_read_leave_no_memory_behind(server: Running) -> None:
    body = b"--b\r\nContent-Disposition: form-data\r\n\r\n" + bytes(9_000_000) + b"\r\n--b--\r\n"
    broken = posted(PATH, b"Content-Type: multipart/form-data; boundary=b\r\n", body)
    # More than Java may use outside of its heap.
    assert server.spec.serving.java_heap_mb < 20 * 9
    assert [exchange(server.ports.inference, broken).status for _ in range(20)] == [400] * 20


def test_a_form_is_told_what_to_type(server: Running) -> None:
    answer = exchange(server.ports.inference, KINDS["form"][0])
    assert answer.status == 415
    assert answer.error["field"] == "content-type"
    assert answer.error["allowed"] == ["application/json", "*/*"]
    assert answer.error["hint"] == "curl -H 'Content-Type: application/json' --data-binary @FILE URL"


def test_a_large_form_reaches_its_end_and_its_sender_the_answer(server: Running) -> None:
    form = b"Content-Type: application/x-www-form-urlencoded\r\n"
    assert exchange(server.ports.inference, posted(PATH, form, SECRET * 300_000)).status == 415


def test_who_sends_a_refused_body_slowly_gets_the_answer_at_its_end(server: Running) -> None:
    size, pieces = 1000, 14
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {size * pieces}\r\n\r\n".encode())
        for _ in range(pieces):
            connection.sendall(b"a" * size)
            time.sleep(0.5)
        assert read_answer(connection).status == 415


def test_answers_come_in_the_order_of_their_requests(server: Running) -> None:
    slow, fast = posted(PATH, b"", b'{"sleep_s": 0.3}'), b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        connection.sendall((slow + fast) * 2)
        stream = connection.makefile("rb")
        bodies = []
        for _ in range(4):
            while not (line := stream.readline()).lower().startswith(b"content-length"):
                assert line
            length = int(line.split(b":")[1])
            while stream.readline().strip():
                pass
            bodies.append(json.loads(stream.read(length)))
    assert [sorted(body) for body in bodies] == [["pid"], ["status"]] * 2


def test_an_answer_without_a_body_is_followed_by_the_next(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        last = b"GET http://x/v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\n" + last)
        of_head, of_get = connection.makefile("rb").read().split(b"\r\n\r\nHTTP/1.1 200 ")
    assert b"content-length: " in of_head
    assert b'"name": "marina"' in of_get


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("PUT", PATH, 200, None),
        ("OPTIONS", PATH, 200, None),
        ("GET", f"{PATH}?body={{}}", 405, "POST, PUT, OPTIONS"),
        ("DELETE", PATH, 405, "POST, PUT, OPTIONS"),
        ("post", PATH, 405, "POST, PUT, OPTIONS"),
        ("HEAD", "/invocations", 405, "POST, PUT, OPTIONS"),
        ("PATCH", "/v1/models/tiny:explain", 405, "POST, PUT, OPTIONS"),
        ("GET", "/v2/models/tiny/infer", 405, "POST"),
        ("PUT", "/v1/models/tiny:predict", 405, "POST"),
        # As TorchServe reads them, and under its old paths.
        ("DELETE", "/%70redictions/tiny", 405, "POST, PUT, OPTIONS"),
        ("GET", "/predictions%2Ftiny/1.0/%20", 405, "POST, PUT, OPTIONS"),
        ("PUT", "/v1/models/tiny%3Apredict%2F", 405, "POST"),
        ("DELETE", "/tiny/predict", 405, "POST, PUT, OPTIONS"),
        ("GET", "/tiny/1.0/predict", 405, "POST, PUT, OPTIONS"),
        ("HEAD", "/models//invoke", 405, "POST, PUT, OPTIONS"),
    ],
)
def test_a_model_is_asked_only_by_the_methods_that_ask(
    method: str, path: str, status: int, allowed: str | None, server: Running
) -> None:
    answer = exchange(server.ports.inference, posted(path, b"", b"{}").replace(b"POST", method.encode(), 1))
    assert (answer.status, answer.headers.get("allow")) == (status, allowed)


@pytest.mark.parametrize(
    "path",
    [
        *(f"{PATH}/", PATH + "/" * 300, "/invocations/", f"{PATH}/1.0//?a=/", "/invocations%2f"),
        *("/%70redictions/tiny", "/tiny/predict", "/tiny/1.0/predict", "/models/tiny/invoke", "/models//invoke"),
    ],
)
def test_no_way_to_write_a_path_hides_a_request(path: str, server: Running) -> None:
    name = "inference_request_duration_seconds_count"
    before = metric(server, name, code="200")
    assert exchange(server.ports.inference, posted(path, b"", b"{}")).status == 200
    eventually(lambda: metric(server, name, code="200") == before + 1)


def test_the_clients_own_request_id_comes_back_and_an_unsafe_one_does_not(server: Running) -> None:
    def answered(value: bytes) -> str:
        return exchange(server.ports.inference, posted(PATH, b"X-Request-Id: " + value + b"\r\n", b"{}")).headers[
            "x-request-id"
        ]

    assert answered(b"order-66") == "order-66"
    assert len(answered(b"x" * 200)) == 36
    refused = posted(PATH, b"X-Request-Id: 7\r\nContent-Type: application/x-www-form-urlencoded\r\n")
    assert exchange(server.ports.inference, refused).headers["x-request-id"] == "7"


def test_who_sends_a_request_a_byte_at_a_time_is_refused_and_nobody_else_waits(start_tiny: Start) -> None:
    server = start_tiny(environment={"JAVA_TOOL_OPTIONS": "-Dmarina.patience_s=1"})
    head = b"POST /predictions/tiny HTTP/1.1\r\nHost: x\r\nX-Slow: "
    body = head + b"1\r\nContent-Length: 900000\r\n\r\n{"
    # No line, half a head, half a body; and the same after a request on the same connection.
    beginnings = [b"\x16\x03\x01", head, body]

    def trickle(number: int) -> int:
        with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as slow:
            first = posted(PATH, b"", b"{}") if number % 2 else b""
            slow.sendall(first + beginnings[number % 3])
            if first:
                assert read_answer(slow).status == 200
            while not select.select([slow], [], [], 0.1)[0]:
                slow.sendall(b"a")
            return read_answer(slow).status

    with ThreadPoolExecutor(60) as pool:
        slow = [pool.submit(trickle, number) for number in range(60)]
        while not all(answer.done() for answer in slow):
            assert ask(server, b"{}") == 200
        assert {answer.result() for answer in slow} == {408}
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    assert server.stop() == Exit.DRAINED


def test_a_client_that_leaves_is_no_longer_open(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.ports.inference)) as connection:
        connection.sendall(posted(PATH, b"", b'{"sleep_s": 2}'))
        eventually(lambda: metric(server, "marina_in_flight") == 1)
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    eventually(lambda: metric(server, "inference_request_duration_seconds_count", code="499") == 1)


def test_a_server_without_open_files_left_serves_on_when_there_are_some(server: Running) -> None:
    java = java_pid(server)
    before = resource.prlimit(java, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{java}/fd"))
    try:
        resource.prlimit(java, resource.RLIMIT_NOFILE, (used + 8, before[1]))
        with ExitStack() as kept:
            for _ in range(40):
                kept.enter_context(socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60))
            eventually(lambda: len(os.listdir(f"/proc/{java}/fd")) >= used + 8)
    finally:
        resource.prlimit(java, resource.RLIMIT_NOFILE, before)
    assert exchange(server.ports.inference, posted(PATH, b"", b"{}")).status == 200
    eventually(lambda: server.get("/metrics")[0] == 200)
    assert java_pid(server) == java


def test_a_worker_that_ends_is_no_exception_of_javas(start_tiny: Start) -> None:
    server = start_tiny()
    answer = exchange(server.ports.inference, posted(PATH, b"", b'{"exit": 3}'))
    assert (answer.status, answer.error) == (500, {"error": "the worker ended while it had this request"})


@pytest.mark.parametrize("uncounted_before", [0, 2, 30])
def test_a_stop_loses_nothing_whatever_was_sent_before(uncounted_before: int, start_tiny: Start) -> None:
    server = start_tiny(workers=1, max_batch=8)
    kinds = list(KINDS.values())
    for number in range(uncounted_before):
        exchange(server.ports.inference, kinds[number % len(kinds)][0])
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(6) as pool:
            slow = [pool.submit(ask, server, b"{}") for _ in range(6)]
            eventually(lambda: metric(server, "marina_in_flight") == 6)
            server.process.terminate()
            eventually(lambda: "no new connections" in server.log.read_text())
            os.kill(worker, signal.SIGCONT)
            assert [answer.result() for answer in slow] == [200] * 6
    finally:
        os.kill(worker, signal.SIGCONT)
    assert server.process.wait(60) == Exit.DRAINED


def test_from_the_start_of_the_drain_every_answer_ends_its_connection(start_tiny: Start) -> None:
    server = start_tiny(drain_propagation_s=30)
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as kept:
        kept.sendall(posted(PATH, b"", b"{}"))
        assert read_answer(kept).headers["connection"] == "keep-alive"
        server.process.terminate()
        eventually(lambda: "draining: no longer ready" in server.log.read_text())
        kept.sendall(posted(PATH, b"", b"{}"))
        answer = read_answer(kept)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert kept.recv(1) == b""
    server.process.terminate()
    server.process.wait(60)


def test_what_was_asked_in_one_go_before_a_drain_is_answered_to_its_end(start_tiny: Start) -> None:
    server = start_tiny()
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        connection.sendall(posted(PATH, b"", b"{}") * 3)
        eventually(lambda: metric(server, "marina_in_flight") == 1)
        server.process.terminate()
        eventually(lambda: "no new connections" in server.log.read_text())
        os.kill(worker, signal.SIGCONT)
        answers = connection.makefile("rb").read().lower()
    assert (answers.count(b"http/1.1 200"), answers.count(b"connection: close")) == (3, 1)
    assert server.process.wait(60) == Exit.DRAINED


def test_an_answer_that_its_client_does_not_read_is_told_and_is_no_clean_end(start_tiny: Start) -> None:
    server = start_tiny(drain_timeout_s=2)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.ports.inference))
        deaf.sendall(posted(PATH, b"", b'{"answer_mb": 8}'))
        eventually(lambda: metric(server, "marina_in_flight") == 1)
        assert server.stop() == Exit.CUT
    assert "answers that their clients did not read: `serving.drain_timeout_s`" in server.log.read_text()


def test_a_connection_that_has_just_been_made_is_waited_for(start_tiny: Start) -> None:
    server = start_tiny()
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as late:
        server.process.terminate()
        eventually(lambda: "no new connections" in server.log.read_text())
        late.sendall(posted(PATH, b"", b"{}"))
        assert read_answer(late).status == 200
    assert server.process.wait(60) == Exit.DRAINED
