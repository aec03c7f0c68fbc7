"""What the policies do that Marina renders for Envoy Gateway, with a real Envoy in front of small servers."""

import base64
import hashlib
import hmac
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from envoy_gateway import Envoy, envoy
from k8s_plans import EVIDENCE, documents, planned
from loadtest_rig import behave, running_server, seen

pytestmark = pytest.mark.e2e

KEY, SIGNING = "a-key-of-alice", b"0123456789abcdef0123456789abcdef"
GOOD = {"x-api-key": KEY}
ROUTE: dict[str, Any] = {"gateway": "edge/public", "auth": {"api_keys": "digits-keys"}}
TEXT = {"error": "no valid key or token"}


@contextmanager
def edge(
    folder: Path, servers: Sequence[str], changes: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[Envoy]:
    """An Envoy as the digits example renders it with these fields of its route, in front of these servers."""
    plan = planned({"kubernetes.route": ROUTE | dict(changes or {})}, evidence=EVIDENCE)
    ports = [urlsplit(server).port or 0 for server in servers]
    with envoy(folder / "envoy", documents(plan), ports, keys={"alice": KEY}, **more) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with running_server(tmp_path / "server") as url:
        yield url


def ask(url: str, headers: Mapping[str, str] = GOOD) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", "/predictions/digits", b"body", dict(headers))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def statuses(url: str, headers: Mapping[str, str], count: int) -> Counter[int]:
    return Counter(ask(url, headers)[0] for _ in range(count))


def test_only_requests_with_a_key_come_in(server: str, tmp_path: Path) -> None:
    with edge(tmp_path, [server]) as gateway:
        assert statuses(gateway.url, {}, 200) == {401: 200}
        assert statuses(gateway.url, {"x-api-key": "another"}, 200) == {401: 200}
        assert statuses(gateway.url, {"authorization": "Bearer another"}, 200) == {401: 200}
        assert seen(server) == 0
        assert statuses(gateway.url, GOOD, 100) == {200: 100}
        assert statuses(gateway.url, {"Authorization": f"Bearer {KEY}"}, 100) == {200: 100}
        assert seen(server) == 200
        status, headers, body = ask(gateway.url, {})
    assert (status, json.loads(body)) == (401, TEXT)
    assert headers["content-type"] == "application/json"
    assert "retry-after" not in headers


def test_the_pods_hear_the_name_of_the_client_and_not_its_key(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with listening(heard) as url, edge(tmp_path, [url]) as gateway:
        assert ask(gateway.url, GOOD | {"x-client-id": "root"})[0] == 200
    (head,) = heard
    assert b"x-client-id: alice\r\n" in head.lower()
    assert b"root" not in head
    assert KEY.encode() not in head


def test_answers_of_the_pods_pass_as_they_are(server: str, tmp_path: Path) -> None:
    with edge(tmp_path, [server]) as gateway:
        for status in (401, 403, 429, 503, 504):
            behave(server, status=status, body=f"ours, {status}")
            assert (ask(gateway.url)[0], ask(gateway.url)[2]) == (status, f"ours, {status}".encode())


def test_a_token_must_be_genuine_and_for_this_service(server: str, tmp_path: Path) -> None:
    jwks = json.dumps({"keys": [{"kty": "oct", "alg": "HS256", "k": coded(SIGNING)}]})
    jwt = {"issuer": "https://id.example.org", "jwks": "https://id.example.org/keys", "audiences": ["digits"]}
    with edge(tmp_path, [server], {"auth": {"jwt": jwt}}, jwks=jwks) as gateway:
        for claims, key, status in (
            ({}, SIGNING, 200),
            ({}, b"another", 401),
            ({"iss": "https://evil.example.org"}, SIGNING, 401),
            ({"exp": 1_000_000_000}, SIGNING, 401),
            ({"aud": "shells"}, SIGNING, 403),
        ):
            answer = ask(gateway.url, {"authorization": f"Bearer {token(key, **claims)}"})
            assert answer[0] == status, claims
        assert json.loads(answer[2]) == {"error": "this key or token is not for this service"}
        assert ask(gateway.url, {})[0] == 401


def test_more_than_the_limit_gets_429_and_who_has_no_key_uses_up_nothing(server: str, tmp_path: Path) -> None:
    with edge(tmp_path, [server], {"limit_rps": 20}) as gateway:
        began = time.monotonic()
        assert statuses(gateway.url, {}, 100) == {401: 100}
        counted = statuses(gateway.url, GOOD, 100)
        took_s = time.monotonic() - began
        while (answer := ask(gateway.url))[0] == 200:
            pass
    assert counted[200] + counted[429] == 100
    # A second's worth is let in at once, and then as many as the clock says.
    assert 20 <= counted[200] <= 20 + 20 * took_s
    assert (answer[0], answer[1]["retry-after"]) == (429, "1")
    assert json.loads(answer[2]) == {"error": "too many requests: try again in a second"}


def test_a_request_that_no_server_has_heard_is_tried_at_another(server: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "dead") as dead:
        pass
    with edge(tmp_path, [dead, server]) as gateway:
        counted = statuses(gateway.url, GOOD, 50)
    # Envoy picks at random, and five times it looks for another server: rarely it meets the same one again.
    assert counted[200] + counted[503] == 50
    assert counted[200] >= 40


def test_a_request_that_one_server_refuses_with_503_is_tried_at_another_once(server: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "full") as full, edge(tmp_path, [full, server]) as gateway:
        behave(full, status=503, body="overloaded")
        counted = statuses(gateway.url, GOOD, 50)
        assert counted[200] + counted[503] == 50
        assert counted[200] >= 40
        assert seen(full) > 0
        behave(server, status=503, body="overloaded")
        before = seen(full) + seen(server)
        assert ask(gateway.url)[0] == 503
        assert seen(full) + seen(server) == before + 2


def test_a_request_that_a_server_heard_before_it_died_is_never_repeated(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(listening(heard, dies=True)) for _ in range(2)]
        gateway = stack.enter_context(edge(tmp_path, servers))
        status, headers, body = ask(gateway.url)
    assert (status, len(heard)) == (503, 1)
    assert headers["retry-after"] == "1"
    assert json.loads(body) == {"error": "no server is free or reachable: try again in a second"}


def test_no_more_requests_are_open_than_the_pods_have_places(server: str, tmp_path: Path) -> None:
    behave(server, silent=True)
    with edge(tmp_path, [server], {"max_parallel": 3, "timeout_s": 5}) as gateway:
        answers: list[int] = []
        waiting = [threading.Thread(target=lambda: answers.append(ask(gateway.url)[0])) for _ in range(3)]
        for thread in waiting:
            thread.start()
        deadline = time.monotonic() + 60
        while seen(server) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # They wait for a server that never answers, and this one must not wait with them.
        assert ask(gateway.url)[0] == 503
        assert seen(server) == 3
        for thread in waiting:
            thread.join()
    assert answers == [504, 504, 504]


@contextmanager
def listening(heard: list[bytes], *, dies: bool = False) -> Iterator[str]:
    """A server that remembers the heads of requests; it answers, or closes the connection as one that died."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    data = b""
                    while not data.endswith(b"body"):
                        data += connection.recv(65536)
                    heard.append(data)
                    if not dies:
                        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(key: bytes, **claims: Any) -> str:
    """A token of this service's issuer, signed with this key."""
    usual = {"iss": "https://id.example.org", "sub": "alice", "aud": "digits", "exp": 4_000_000_000}
    parts = [coded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, usual | claims)]
    signed = ".".join(parts)
    return f"{signed}.{coded(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"
