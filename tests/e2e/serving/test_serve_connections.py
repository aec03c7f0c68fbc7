"""More connections than there is room for: idle ones give way, the others are told, and none is lost."""

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hostile import posted, read_answer
from running import Running, running
from tiny import make_tiny
from troubles import shows
from waiting import ask, eventually, metric, worker_pids

pytestmark = pytest.mark.e2e
PATH, ROOM = "/predictions/tiny", 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with room for few."""
    folder = tmp_path_factory.mktemp("small")
    spec, mar = make_tiny(folder, max_batch=8)
    soon = {"JAVA_TOOL_OPTIONS": "-Dmarina.unread_s=2 -Dmarina.idle_s=3"} | room_for(ROOM)
    with running(spec, mar=mar, log=folder / "server.log", environment=soon) as server:
        yield server


def room_for(connections: int) -> dict[str, str]:
    """The environment of a server with room for so many connections."""
    return {"TEST_CONSTANTS": json.dumps({"marina.server.java.checks.MAX_CONNECTIONS": connections})}


def connected(server: Running, kept: ExitStack) -> socket.socket:
    return kept.enter_context(socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60))


def test_idle_connections_make_room_and_are_closed_in_time(small: Running) -> None:
    with ExitStack() as kept:
        idle = []
        for _ in range(3 * ROOM):
            idle.append(connected(small, kept))
            idle[-1].sendall(posted(PATH, b"", b"{}"))
            assert read_answer(idle[-1]).status == 200
        # Those that made room, and in the end all that have asked nothing for so long.
        assert [each.recv(1) for each in idle] == [b""] * len(idle)
    eventually(lambda: metric(small, "marina_connections") <= 1)


def test_a_connection_makes_room_for_a_single_other(small: Running) -> None:
    before = metric(small, "marina_connections_refused_total")
    with ExitStack() as kept:
        idle = [connected(small, kept) for _ in range(ROOM)]
        for each in idle:
            each.sendall(posted(PATH, b"", b"{}"))
            assert read_answer(each).status == 200
        newcomers = [connected(small, kept) for _ in idle]
        assert [each.recv(1) for each in idle] == [b""] * ROOM
        assert [read_answer(connected(small, kept)).status for _ in newcomers] == [503] * ROOM
    eventually(lambda: metric(small, "marina_connections_refused_total") == before + ROOM)


def test_where_all_are_at_work_one_more_is_told_and_none_of_them_is_lost(small: Running) -> None:
    (worker,) = worker_pids(small)
    before = metric(small, "marina_connections_refused_total")
    with ExitStack() as kept:
        os.kill(worker, signal.SIGSTOP)
        kept.callback(os.kill, worker, signal.SIGCONT)
        asked: list[socket.socket] = []

        def one_more_is_turned_away() -> bool:
            asked.append(connected(small, kept))
            asked[-1].sendall(posted(PATH, b"", b"{}"))
            return metric(small, "marina_connections_refused_total") > before

        eventually(one_more_is_turned_away, within_s=25)
        os.kill(worker, signal.SIGCONT)
        answers = [read_answer(each) for each in asked]
    served = [answer for answer in answers if answer.status == 200]
    told = [answer for answer in answers if answer.status != 200]
    assert 1 <= len(served) <= ROOM
    assert {(each.status, each.headers["connection"]) for each in told} == {(503, "close")}
    for each in told:
        shows("crowded", each.body.decode())
    eventually(lambda: ask(small, b"{}") == 200)


def test_own_inferences_that_found_no_room_are_not_taken_off_the_arrivals(small: Running) -> None:
    (worker,) = worker_pids(small)
    before = metric(small, "marina_connections_refused_total")
    with ExitStack() as kept:
        holding = [connected(small, kept) for _ in range(ROOM)]
        for connection in holding:
            # What has come quickly is not late for a minute.
            connection.sendall(posted(PATH, b"", b"{" + b" " * 2_000_000 + b"}")[:-1])
        eventually(lambda: metric(small, "marina_connections") == ROOM)
        os.kill(worker, signal.SIGKILL)
        # The readiness inferences after its restart.
        eventually(lambda: metric(small, "marina_connections_refused_total") >= before + 3)
        for connection in holding:
            connection.sendall(b"}")
            assert read_answer(connection).status == 200
    eventually(lambda: metric(small, "marina_ready") == 1)
    answered = "inference_request_duration_seconds_count"
    eventually(lambda: metric(small, "ts_inference_requests_total") == metric(small, answered))


def test_of_a_crowd_half_as_large_as_the_room_each_is_told(tmp_path: Path) -> None:
    room, beyond = 160, 75
    spec, mar = make_tiny(tmp_path)
    log = tmp_path / "server.log"
    with running(spec, mar=mar, log=log, environment=room_for(room)) as server, ExitStack() as kept:
        (worker,) = worker_pids(server)
        os.kill(worker, signal.SIGSTOP)
        kept.callback(os.kill, worker, signal.SIGCONT)
        inside = [connected(server, kept) for _ in range(room)]
        for connection in inside:
            connection.sendall(posted(PATH, b"", b"{}"))
        eventually(lambda: metric(server, "marina_in_flight") == room)
        outside = [connected(server, kept) for _ in range(beyond)]
        assert [read_answer(connection).status for connection in outside] == [503] * beyond


def test_an_answer_that_nobody_takes_is_given_up(small: Running) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", small.ports.inference))
        deaf.sendall(posted(PATH, b"", b'{"answer_mb": 8}'))
        eventually(lambda: metric(small, "marina_in_flight") == 1)
        eventually(lambda: metric(small, "marina_in_flight") == 0)
    eventually(lambda: metric(small, "inference_request_duration_seconds_count", code="499") == 1)


def test_bodies_that_do_not_come_make_room(small: Running) -> None:
    before = metric(small, "marina_connections_refused_total")
    with ExitStack() as kept:
        slow = [connected(small, kept) for _ in range(2 * ROOM)]
        for each in slow:
            each.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode())
        eventually(lambda: ask(small, b"{}") == 200, within_s=10)
        late = [each for each in slow if select.select([each], [], [], 0)[0]]
        assert read_answer(late[0]).status in (408, 503)
    assert metric(small, "marina_connections_refused_total") > before
