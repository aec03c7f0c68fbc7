import errno
import http.client
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from types import SimpleNamespace

import pytest

from marina.server.pages import pages_server
from marina.server.pages.pages import PageResponse, PostPage, json_response, serve_pages
from marina.server.pages.pages_server import BoundedReader, PagesServer, is_trusted


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(pages_server, "CONNECTIONS", 5)

    def echo(body: bytes, _: Message) -> PageResponse:
        return PageResponse(200, body, "text/plain")

    number = free_port()
    server = serve_pages(
        "127.0.0.1", number, {"/ready": lambda: json_response(200, {})}, {"/try": PostPage(1000, echo)}
    )
    yield number
    server.shutdown()
    server.server_close()


def get(port: int, *, host: str = "localhost") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/ready", headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("line", [b"\x16\x03\x01", b"PRI * HTTP/2.0", b"GET /ready HTTP/9", b"BREW /ready HTTP/1.1"])
def test_what_cannot_be_read_is_answered_in_json_after_a_status_line(port: int, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(line + b"\r\n\r\n")
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    assert json.loads(body)["error"]


def test_silent_clients_give_way_and_hold_no_threads(port: int) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
    assert get(port) == 200
    assert threading.active_count() <= before + 5 + 5
    assert silent[0].recv(1) == b""
    for client in silent:
        client.close()


def test_slow_bodies_are_few_and_others_are_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_server, "CONNECTIONS", 50)
    head = b"POST /try HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(pages_server.BODIES + 1)]
    for client in slow:
        client.sendall(head)
    # The last one to arrive is refused; which one that is depends on the threads.
    ready, _, _ = select.select(slow, [], [], 30)
    assert ready[0].recv(12) == b"HTTP/1.1 503"
    for client in slow:
        if client is not ready[0]:
            client.sendall(b"123456789")
            assert client.recv(12) == b"HTTP/1.1 200"
        client.close()


@pytest.mark.slow
def test_clients_that_read_no_answer_give_way_too(port: int) -> None:
    unread = []
    for _ in range(5):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        # More answers than the kernel keeps, so that the server waits while it writes one.
        with suppress(BlockingIOError):
            while True:
                client.send(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        unread.append(client)
    assert [get(port) for _ in range(5)] == [200] * 5
    for client in unread:
        client.close()


def answers(port: int, request: bytes) -> bytes:
    """Everything that is answered until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(request)
        received = b""
        # A close with unread bytes of a body is a reset.
        with suppress(ConnectionResetError):
            while piece := client.recv(65_536):
                received += piece
        return received


SECOND = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("start", "lengths", "status"),
    [
        pytest.param(b"GET /ready", b"Content-Length: %d\r\n" % len(SECOND), b"200", id="GET with a body"),
        pytest.param(b"GET /ready", CHUNKED, b"200", id="GET in chunks"),
        pytest.param(b"POST /ready", b"Content-Length: 3\r\n", b"405", id="POST to a page that takes none"),
        pytest.param(b"POST /try", b"Content-Length: 0\r\nContent-Length: 9\r\n", b"411", id="two lengths"),
        pytest.param(b"POST /try", b"Content-Length: 0\r\n" + CHUNKED, b"411", id="a length and chunks"),
        pytest.param(b"POST /try", b"Content-Length: +0\r\n", b"411", id="a sign"),
        pytest.param(b"POST /try", b"Content-Length: " + b"1" * 5000 + b"\r\n", b"411", id="too long a number"),
    ],
)
def test_what_follows_the_head_is_never_a_second_request(
    port: int, start: bytes, lengths: bytes, status: bytes
) -> None:
    received = answers(port, start + b" HTTP/1.1\r\nHost: localhost\r\n" + lengths + b"\r\n" + SECOND)
    assert received.startswith(b"HTTP/1.1 " + status)
    assert received.count(b"HTTP/1.1") == 1


def test_an_origin_that_is_no_address_is_foreign(port: int) -> None:
    head = b"POST /try HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nOrigin: "
    assert answers(port, head + b"http://[\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert answers(port, head + b"http://localhost\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_large_head_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as greedy:
        greedy.sendall(b"GET /ready HTTP/1.1\r\n" + b"X: " + b"y" * 60_000 + b"\r\n")
        with suppress(ConnectionResetError):
            assert greedy.recv(1) == b""
    assert get(port) == 200


def test_names_of_other_sites_are_refused_on_a_laptop(port: int) -> None:
    assert get(port, host="evil.example") == 421
    assert get(port, host=f"127.0.0.1:{port}") == 200


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        (None, True),
        ("localhost:8090", True),
        ("digits.localhost", True),
        ("127.0.0.1", True),
        ("[::1]:8090", True),
        ("10.1.2.3:8090", True),
        ("evil.example:8090", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_addresses_and_loopback_names_are_trusted(host: str | None, trusted: bool) -> None:
    assert is_trusted(host) is trusted


def test_without_descriptors_the_listener_waits_instead_of_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pages_server.ThreadingHTTPServer, "get_request", none_left)
    monkeypatch.setattr(pages_server.time, "sleep", waits.append)
    fake = SimpleNamespace(_give_way=lambda: waits.append(0))
    monkeypatch.setattr(pages_server, "super", lambda: SimpleNamespace(get_request=none_left), raising=False)
    with pytest.raises(OSError, match="Too many"):
        PagesServer.get_request(fake)  # type: ignore[arg-type]
    assert waits == [0, pages_server._NO_DESCRIPTOR_S]


def test_a_body_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, pages_server.BODY_S + 1])
    monkeypatch.setattr(pages_server.time, "monotonic", lambda: next(times))
    stream = SimpleNamespace(read1=lambda _: b"x")
    with pytest.raises(TimeoutError):
        BoundedReader(stream).body(100)  # type: ignore[arg-type]
