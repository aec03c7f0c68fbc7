"""Clients that say that they send no more: those that wait for their answer get it, for those that have left nothing is
computed."""

import os
import signal
import socket
import struct
from collections.abc import Iterator

import pytest
from conftest import Start
from hostile import posted
from running import Running
from waiting import ask, eventually, metric, worker_pids

pytestmark = pytest.mark.e2e
PATH = "/predictions/tiny"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
SLOW, FAST = posted(PATH, b"", b'{"sleep_s": 0.5}'), posted(PATH, b"", b"{}")


@pytest.fixture(scope="module")
def server(module_tiny: Running) -> Iterator[Running]:
    return module_tiny


def said_all(server: Running, *sent: bytes) -> bytes:
    """What a client gets that sends this and then no more, as `nc -N` does."""
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        for part in sent:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


@pytest.mark.parametrize("requests", [[SLOW], [FAST], [SLOW, FAST], [FAST, SLOW, SLOW]])
def test_who_sends_no_more_gets_every_answer(requests: list[bytes], server: Running) -> None:
    got = said_all(server, *requests)
    answers = got.replace(INTERIM, b"")
    assert answers.count(b"HTTP/1.1 200 ") == len(requests) == answers.count(b'{"pid": ')
    assert got.count(INTERIM) <= 1
    eventually(lambda: metric(server, "marina_in_flight") == 0)


def test_a_client_of_http_1_0_gets_its_answer_and_nothing_before_it(server: Running) -> None:
    got = said_all(server, SLOW.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert INTERIM not in got
    assert b" 200 " in got.splitlines()[0]


@pytest.mark.parametrize("whole", [b"", FAST])
@pytest.mark.parametrize("cut", [b"", SLOW[:20], SLOW[:-3], b"GET /ping HTTP/1.1\r\n"])
def test_who_sends_no_more_of_half_a_request_is_gone(whole: bytes, cut: bytes, server: Running) -> None:
    got = said_all(server, whole + cut)
    assert got.count(b'{"pid": ') == bool(whole)
    eventually(lambda: metric(server, "marina_in_flight") == 0)
    assert ask(server, b"{}") == 200


def _ends(connection: socket.socket) -> None:
    connection.close()


def _resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _ends_in_two_steps(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)
    connection.close()


@pytest.mark.parametrize("leave", [_ends, _resets, _ends_in_two_steps])
def test_nothing_is_computed_for_who_has_left_before_a_worker_was_free(leave, start_tiny: Start) -> None:
    server = start_tiny()
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as first:
            first.sendall(FAST)
            eventually(lambda: metric(server, "marina_in_flight") == 1)
            second = socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60)
            second.sendall(posted(PATH, b"", b'{"count": 1}'))
            eventually(lambda: metric(server, "marina_in_flight") == 2)
            leave(second)
            eventually(lambda: metric(server, "marina_in_flight") == 1)
            os.kill(worker, signal.SIGCONT)
            assert first.recv(13) == b"HTTP/1.1 200 "
    finally:
        os.kill(worker, signal.SIGCONT)
    assert ask(server, b'{"count": 10}') == 200
    eventually(lambda: metric(server, "tiny_counted_total") >= 10)
    assert metric(server, "tiny_counted_total") == 10
