import time
from collections.abc import Callable

import pytest

from marina.server.java.door import OpenCounts
from marina.server.system.sockets import Sockets
from marina.server.watching.drain import Drained, drain, is_quiet

BUSY = Sockets(connected=1)


class FakeServer:
    """A server with scripted counts of open requests; time passes only in `second_signal_within`."""

    def __init__(
        self,
        open_requests: list[int | None],
        *,
        expected: int = 0,
        waiting: list[int] | None = None,
        undelivered: int = 0,
        dies_after: int = 10**9,
        second_signal: bool = False,
        gone: bool = False,
    ) -> None:
        self.left, self.expected = open_requests, expected
        self.waiting, self.undelivered = waiting, undelivered
        self.calls: list[str] = []
        self.now = 0.0
        self._dies_after, self._second_signal, self._gone = dies_after, second_signal, gone

    def end_connections(self) -> None:
        self.calls.append("end_connections")

    def refuse_new_connections(self) -> bool:
        self.calls.append("refuse_new_connections")
        return self.waiting is not None

    def close_listener(self) -> None:
        self.calls.append("close_listener")

    def count(self) -> OpenCounts | None:
        left = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return None if left is None else OpenCounts(expected=self.expected, requests=left)

    def sockets(self) -> Sockets:
        if self.waiting and "close_listener" not in self.calls:
            return Sockets(listening=True, waiting=self.waiting.pop(0))
        return Sockets(connected=int(not self._gone), undelivered=self.undelivered)

    def java_runs(self) -> bool:
        self._dies_after -= 1
        return self._dies_after >= 0

    def end_answers(self) -> None:
        self.calls.append("end_answers")

    def second_signal_within(self, timeout_s: float) -> bool:
        self.calls.append(f"wait {timeout_s:g}")
        self.now += timeout_s
        return self._second_signal and "close_listener" in self.calls


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Drained]:
    def run(server: FakeServer, propagation_s: float = 5, timeout_s: float = 30) -> Drained:
        monkeypatch.setattr(time, "monotonic", lambda: server.now)
        return drain(server, propagation_s=propagation_s, timeout_s=timeout_s, say=print)

    return run


def test_serves_on_before_the_listener_closes_and_ends_when_quiet(drained: Callable[..., Drained]) -> None:
    server = FakeServer([3, 2, 1, 0])
    result = drained(server)
    assert server.calls[:4] == ["end_connections", "wait 5", "refuse_new_connections", "close_listener"]
    assert (result.left, result.unread, result.reason) == (0, 0, None)
    assert result.took_s == pytest.approx(5 + 2 * 0.02)


def test_listener_closes_when_nobody_waits_in_two_looks_in_a_row(drained: Callable[..., Drained]) -> None:
    server = FakeServer([0], waiting=[2, 0, 1])
    drained(server)
    assert server.calls[1:3] == ["wait 5", "refuse_new_connections"]
    assert server.calls[3:] == ["wait 0.02"] * 5 + ["close_listener"]


def test_client_that_never_finishes_connecting_is_not_waited_for_long(drained: Callable[..., Drained]) -> None:
    server = FakeServer([0], waiting=[1] * 1000)
    assert drained(server).reason is None
    assert server.calls.index("close_listener") == pytest.approx(3 + 1 / 0.02, abs=1)


def test_who_has_just_connected_is_waited_for_but_not_for_ever(drained: Callable[..., Drained]) -> None:
    result = drained(FakeServer([0], expected=1))
    assert result.reason is None
    assert 7 <= result.took_s < 7.1


@pytest.mark.parametrize(
    ("server", "reason", "left", "unread"),
    [
        pytest.param(FakeServer([1]), "`serving.drain_timeout_s` of 30 s was exceeded", 1, 0, id="bound"),
        pytest.param(FakeServer([None]), "`serving.drain_timeout_s` of 30 s was exceeded", 1, 0, id="nobody counts"),
        pytest.param(FakeServer([1], second_signal=True), "a second signal", 1, 0, id="second signal"),
        pytest.param(FakeServer([4, 3, 2, None], dies_after=3), "TorchServe died", 2, 0, id="death"),
        pytest.param(FakeServer([4, None], dies_after=0, gone=True), "TorchServe died", 4, 0, id="death at once"),
        pytest.param(
            FakeServer([0], undelivered=2), "`serving.drain_timeout_s` of 30 s was exceeded", 0, 2, id="deaf clients"
        ),
    ],
)
def test_cut_says_why_and_how_many(
    drained: Callable[..., Drained], server: FakeServer, reason: str, left: int, unread: int
) -> None:
    result = drained(server)
    assert (result.reason, result.left, result.unread) == (reason, left, unread)


@pytest.mark.parametrize(
    ("counted", "sockets", "quiet"),
    [
        pytest.param(OpenCounts(), Sockets(listening=True), False, id="listening"),
        pytest.param(OpenCounts(), Sockets(connected=2), True, id="idle connections"),
        pytest.param(OpenCounts(requests=1), Sockets(connected=2), False, id="open request"),
        pytest.param(OpenCounts(expected=1), Sockets(connected=2), False, id="half a head"),
        pytest.param(OpenCounts(), Sockets(connected=2, unread=10), False, id="unread request"),
        pytest.param(OpenCounts(), Sockets(connected=2, undelivered=1), False, id="undelivered answer"),
        pytest.param(OpenCounts(), Sockets(undelivered=1), False, id="undelivered answer of a closed connection"),
        pytest.param(OpenCounts(requests=3), Sockets(), True, id="nobody is connected"),
        pytest.param(None, Sockets(connected=1), False, id="unknown"),
        pytest.param(OpenCounts(requests=1, connections=1), Sockets(), False, id="where the kernel shows no sockets"),
    ],
)
def test_quiet_is_when_nothing_is_open_or_on_its_way(counted: OpenCounts | None, sockets: Sockets, quiet: bool) -> None:
    assert is_quiet(counted, sockets, patient=True) is quiet


def test_answers_in_pieces_get_a_last_word_when_the_bound_is_exceeded(drained: Callable[..., Drained]) -> None:
    server = FakeServer([1])
    assert drained(server).left == 1
    assert server.calls.count("wait 0.02") == pytest.approx((30 + 1) / 0.02, abs=3)
    assert server.calls.index("end_answers") == pytest.approx(30 / 0.02, abs=6)


def test_half_a_head_is_quiet_in_the_end() -> None:
    assert is_quiet(OpenCounts(expected=1), BUSY, patient=False)
