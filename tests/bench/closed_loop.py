"""The rate that a server gives when it always has work: a fixed number of clients, each of which sends again as soon as
it has its answer. One thread and plain sockets, so that the cores are left to the server."""

import contextlib
import selectors
import socket
import time
from collections import Counter
from dataclasses import dataclass

import process_tree

from marina.loadtest.sending import LoadRequest
from marina.loadtest.sending.wire import AnswerReader, BrokenAnswer, HttpAnswer

_READ_BYTES = 1 << 16
# After this long without any answer a server is not slow but gone.
_SILENT_S = 60.0


@dataclass(frozen=True)
class Window:
    """What was seen between two answers, the first and the last of a measured window."""

    rps: float
    cpu_ms: float
    """CPU of the server's tree, per answer."""
    client_cpu_ms: float
    """CPU of this client, per answer."""
    foreign: float
    """Share of all cores' time that neither of the two used: how far to trust the rest."""
    errors: dict[str, int]


class _Client:
    """One connection, and the request that is on its way."""

    def __init__(self, address: tuple[str, int], data: bytes) -> None:
        self._address, self._data = address, memoryview(data)
        self.socket = self._connect()

    def begin(self) -> None:
        self._unsent, self._reader = self._data, AnswerReader()

    def push(self) -> bool:
        """Sends what the connection takes; whether all is sent."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        return not self._unsent

    def pull(self) -> HttpAnswer | None:
        """The answer, once it is complete; BrokenAnswer or OSError where it never will be."""
        received = self.socket.recv(_READ_BYTES)
        return self._reader.feed(received) if received else self._reader.finish()

    def reconnect(self) -> None:
        self.socket.close()
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        return made


class ClosedLoop:
    """`clients` connections that are never idle, as a context."""

    def __init__(self, request: LoadRequest, clients: int) -> None:
        data = request.wire_bytes()
        self._selector = selectors.DefaultSelector()
        self._clients = [_Client(request.address, data) for _ in range(clients)]
        self._answered, self._errors = 0, Counter[str]()
        self._ending = False

    def __enter__(self) -> "ClosedLoop":
        for client in self._clients:
            self._send(client, known=False)
        return self

    def __exit__(self, *_: object) -> None:
        # What a server has taken it computes, whether anybody waits for it or not; the next measurement must not pay.
        self._ending = True
        deadline = time.monotonic() + _SILENT_S
        while self._selector.get_map() and time.monotonic() < deadline:
            self._step_all()
        for client in self._clients:
            client.socket.close()
        self._selector.close()

    def window(self, root: int, warmup_s: float, seconds: float, *, cores: int) -> Window:
        """Runs on, and measures the server whose tree starts at `root` after the warm-up."""
        self._run_until(time.monotonic() + warmup_s)
        self._answered, self._errors = 0, Counter()
        before = self._marks(root)
        self._run_until(before[0] + seconds)
        took, server, client, whole = (after - mark for after, mark in zip(self._marks(root), before, strict=True))
        answered = max(1, self._answered)
        return Window(
            rps=self._answered / took,
            cpu_ms=1e3 * server / answered,
            client_cpu_ms=1e3 * client / answered,
            foreign=max(0.0, whole - server - client) / (took * cores),
            errors=dict(self._errors),
        )

    def _marks(self, root: int) -> tuple[float, float, float, float]:
        return time.monotonic(), process_tree.cpu_s(root), time.process_time(), process_tree.machine_cpu_s()

    def _run_until(self, moment: float) -> None:
        """Ends with the first answer after `moment`, so that windows start and end at answers."""
        begun = self._answered
        while time.monotonic() < moment or self._answered == begun:
            self._step_all()

    def _step_all(self) -> None:
        ready = self._selector.select(_SILENT_S)
        if not ready:
            raise TimeoutError(f"no answer for {_SILENT_S:g} s")
        for key, _ in ready:
            self._step(key.data, key.events)

    def _step(self, client: _Client, waits_for: int) -> None:
        try:
            if waits_for & selectors.EVENT_WRITE:
                if client.push():
                    self._selector.modify(client.socket, selectors.EVENT_READ, client)
                return
            answer = client.pull()
        except (BrokenAnswer, OSError) as err:
            self._errors[type(err).__name__] += 1
            self._again(client)
            return
        if answer is None:
            return
        if answer.status == 200:
            self._answered += 1
        else:
            self._errors[str(answer.status)] += 1
        if self._ending:
            self._selector.unregister(client.socket)
        elif answer.keep_alive:
            self._send(client, known=True)
        else:
            self._again(client)

    def _again(self, client: _Client) -> None:
        self._selector.unregister(client.socket)
        if not self._ending:
            client.reconnect()
            self._send(client, known=False)

    def _send(self, client: _Client, *, known: bool) -> None:
        client.begin()
        wanted = selectors.EVENT_READ if client.push() else selectors.EVENT_WRITE
        if known:
            self._selector.modify(client.socket, wanted, client)
        else:
            self._selector.register(client.socket, wanted, client)
