"""Listening on IPv6, alone and together with IPv4."""

import json
import socket
import urllib.request
from collections.abc import Iterator

import pytest
from tools import skip_unless_required

from marina.config.ports import bound_socket
from marina.config.render import Ports
from marina.server.java.checks import check_ports
from marina.server.java.door import Door
from marina.server.system.sockets import reachable_host, read_sockets
from marina.server.watching.pages import json_response, serve_pages


@pytest.fixture(autouse=True)
def has_ipv6() -> None:
    try:
        bound_socket("::1", 0).close()
    except OSError as err:
        skip_unless_required(f"there is no IPv6 here: {err}")


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("::", 0)
    yield made
    made.close()


def test_a_door_for_all_addresses_takes_both_kinds_and_refuses_both(door: Door) -> None:
    if door.why_cannot_refuse:
        skip_unless_required(door.why_cannot_refuse)
    with socket.socket(fileno=socket.dup(door.listener)) as theirs:
        theirs.listen()
        port = theirs.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("::1", port)):
            assert (read_sockets(port).waiting, read_sockets(port).listening) == (2, True)
            assert door.refuse_new_connections()
            for address in ("127.0.0.1", "::1"):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port))
            for _ in range(2):
                theirs.accept()[0].close()
        assert read_sockets(port).waiting == 0


def test_all_addresses_are_those_of_ipv4_if_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bound_socket("::", 0) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", ["::", "::1"])
def test_the_pages_are_served_on_ipv6(host: str) -> None:
    server = serve_pages(host, 0, {"/ready": lambda: json_response(200, {"ready": True})})
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.server_port}/ready") as answer:
            assert json.loads(answer.read()) == {"ready": True}
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_that_another_has_on_ipv4_alone_is_taken_for_all_addresses() -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bound_socket("::", taken.getsockname()[1])


def test_hosts_of_ipv6_pass_the_checks_and_have_brackets_in_addresses() -> None:
    for host in ("::", "::1"):
        check_ports(Ports(21100), host)
    assert [reachable_host(host) for host in ("::", "0.0.0.0", "::1", "10.0.0.7")] == [
        "127.0.0.1",
        "127.0.0.1",
        "[::1]",
        "10.0.0.7",
    ]
