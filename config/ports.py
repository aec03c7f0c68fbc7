"""The ports of a server on this machine: which are free."""

from __future__ import annotations

import random
import socket

from config.errors import InputError
from config.render import Ports

# Below the ports that the kernel gives to clients.
_BASES = range(20_000, 32_000, 20)
_TRIES = 100


def listen_once(address: str, port: int) -> None:
    """OSError when a server could not listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        # A bound port is not yet a free one: without SO_REUSEPORT only one socket may listen.
        probe.listen()


def free_port_base() -> int:
    """A base whose ports are all free now; another program may still take one before they are used."""
    for base in random.sample(_BASES, _TRIES):
        try:
            for port in Ports(base).all().values():
                listen_once("127.0.0.1", port)
        except OSError:
            continue
        return base
    raise InputError(f"no free range of ports between {_BASES[0]} and {_BASES[-1]}")
