"""Finds free ports for a server on this machine."""

import random
import socket

from marina.config.errors import InputError
from marina.config.render import Ports

# Below the range from which the kernel takes ports for outgoing connections.
_BASES = range(20_000, 32_000, 20)
_TRIES = 100


def bound_socket(address: str, port: int) -> socket.socket:
    """A TCP socket that is bound but does not listen yet; OSError if it cannot be. `::` also takes IPv4, and is
    `0.0.0.0` if the kernel has no IPv6."""
    if address == "::" and not socket.has_dualstack_ipv6():
        address = "0.0.0.0"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def listen_once(address: str, port: int) -> None:
    """Listens for a moment; OSError if a server could not listen there now."""
    with bound_socket(address, port) as probe:
        # `bind` alone does not prove that the port is free: with SO_REUSEADDR it can succeed beside a bound socket.
        probe.listen()


def free_port_base() -> int:
    """A port base whose ports are all free now; another program may still take one before they are used."""
    for base in random.sample(_BASES, _TRIES):
        try:
            for port in Ports(base).all().values():
                listen_once("127.0.0.1", port)
        except OSError:
            continue
        return base
    raise InputError(f"no free range of ports between {_BASES[0]} and {_BASES[-1]}")
