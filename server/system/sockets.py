"""The state of the connections to a port, from /proc/net/tcp: no privileges needed, and no process has to answer."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _SYN_RECV, _CLOSE_WAIT, _LISTEN = "01", "03", "08", "0A"
# States of a connection that the server closed while bytes were in flight: FIN_WAIT1, LAST_ACK, CLOSING. The FIN itself
# counts as one byte.
_ENDING = ("04", "09", "0B")


@dataclass(frozen=True)
class Sockets:
    """Counts of the sockets on one local port."""

    listening: bool = False
    waiting: int = 0
    """Connections that the kernel has established or is establishing and the server has not accepted."""
    connected: int = 0
    """Connections that may still carry an answer; at most one request is open on each."""
    unread: int = 0
    """Bytes that clients have sent and the server has not read."""
    undelivered: int = 0
    """Connections, including closed ones, with bytes that the server has written and the client has not received."""


def read_sockets(port: int, tables: Iterable[Path] = _TABLES) -> Sockets:
    """Counts the sockets bound to `port` in this network namespace."""
    wanted, listening, waiting, connected, unread, undelivered = f":{port:04X}", False, 0, 0, 0, 0
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, queues = line.split()[:5]
            if not local.endswith(wanted):
                continue
            if state == _LISTEN:
                listening = True
                waiting += int(queues.partition(":")[2], 16)
            elif state == _SYN_RECV:
                waiting += 1
            elif state in (_ESTABLISHED, _CLOSE_WAIT):
                connected += 1
                sent, _, received = queues.partition(":")
                undelivered += int(sent, 16) > 0
                unread += int(received, 16)
            elif state in _ENDING:
                undelivered += int(queues.partition(":")[0], 16) > 1
    return Sockets(listening, waiting, connected, unread, undelivered)


def reachable_host(host: str) -> str:
    """A host, as URLs have it, at which a server that listens on `host` can be reached from this machine."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
