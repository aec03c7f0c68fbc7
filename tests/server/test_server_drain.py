import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from server.java.frontend import Counters
from server.supervisor import Supervisor
from server.system.sockets import Sockets
from server.watching.drain import Drained, drain, is_quiet

BUSY = Sockets(connected=1)


class FakeServer:
    """A server whose open requests are scripted; time passes only in `hurried`."""

    def __init__(
        self,
        open_requests: list[int | None],
        *,
        waiting: list[int] | None = None,
        dies_after: int = 10**9,
        second_signal: bool = False,
    ) -> None:
        self.left = open_requests
        self.waiting = waiting
        self.calls: list[str] = []
        self.now = 0.0
        self._dies_after, self._second_signal = dies_after, second_signal

    def turn_away(self) -> bool:
        self.calls.append("turn_away")
        return self.waiting is not None

    def close_listener(self) -> None:
        self.calls.append("close_listener")

    def open_requests(self) -> int | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def sockets(self) -> Sockets:
        return (
            BUSY
            if not self.waiting or "close_listener" in self.calls
            else Sockets(listening=True, waiting=self.waiting.pop(0))
        )

    def java_runs(self) -> bool:
        self._dies_after -= 1
        return self._dies_after >= 0

    def hurried(self, timeout_s: float) -> bool:
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
    server = FakeServer([2, 1, 0])
    result = drained(server)
    assert server.calls[:3] == ["wait 5", "turn_away", "close_listener"]
    assert (result.left, result.reason) == (0, None)
    assert result.took_s == pytest.approx(5 + 7 * 0.02)


def test_listener_closes_when_nobody_waits_in_two_looks_in_a_row(drained: Callable[..., Drained]) -> None:
    server = FakeServer([0], waiting=[2, 0, 1])
    drained(server)
    assert server.calls[:2] == ["wait 5", "turn_away"]
    assert server.calls[2:8] == ["wait 0.02"] * 5 + ["close_listener"]


def test_client_that_never_finishes_connecting_is_not_waited_for_long(drained: Callable[..., Drained]) -> None:
    server = FakeServer([0], waiting=[1] * 1000)
    assert drained(server).reason is None
    assert server.calls.index("close_listener") == pytest.approx(2 + 1 / 0.02, abs=1)


def test_one_quiet_look_is_not_enough_at_first(drained: Callable[..., Drained]) -> None:
    server = FakeServer([0, 0, 0, 0, 1, 0])
    assert drained(server).took_s == pytest.approx(5 + 10 * 0.02)


def test_kept_connections_in_use_do_not_put_the_end_off_for_ever(drained: Callable[..., Drained]) -> None:
    result = drained(FakeServer([1, 0] * 1000))
    assert result.reason is None
    assert 7 <= result.took_s < 7.1


@pytest.mark.parametrize(
    ("server", "reason", "left"),
    [
        pytest.param(FakeServer([1]), "`serving.drain_timeout_s` of 30 s was exceeded", 1, id="bound"),
        pytest.param(FakeServer([None]), "`serving.drain_timeout_s` of 30 s was exceeded", 1, id="nobody counts"),
        pytest.param(FakeServer([1], second_signal=True), "a second signal", 1, id="second signal"),
        pytest.param(FakeServer([1], dies_after=3), "TorchServe died", 1, id="death"),
        pytest.param(FakeServer([9]), "`serving.drain_timeout_s` of 30 s was exceeded", 1, id="more than connections"),
    ],
)
def test_cut_says_why_and_how_many(drained: Callable[..., Drained], server: FakeServer, reason: str, left: int) -> None:
    result = drained(server)
    assert (result.reason, result.left) == (reason, left)


@pytest.mark.parametrize(
    ("open_requests", "sockets", "quiet"),
    [
        pytest.param(0, Sockets(listening=True), False, id="listening"),
        pytest.param(0, Sockets(connected=2), True, id="idle connections"),
        pytest.param(1, Sockets(connected=2), False, id="open request"),
        pytest.param(0, Sockets(connected=2, unread=10), False, id="unread request"),
        pytest.param(0, Sockets(connected=2, unsent=10), False, id="unsent answer"),
        pytest.param(3, Sockets(), True, id="nobody is connected"),
        pytest.param(None, Sockets(connected=1), False, id="unknown"),
    ],
)
def test_quiet_is_when_nothing_is_open_or_on_its_way(open_requests: int | None, sockets: Sockets, quiet: bool) -> None:
    assert is_quiet(open_requests, sockets) is quiet


def test_the_counters_are_asked_while_their_port_still_takes_connections() -> None:
    calls: list[str] = []
    supervisor = Supervisor(
        child=SimpleNamespace(close_listener=lambda: calls.append("close")),
        frontend=SimpleNamespace(counters=lambda: calls.append("ask") or Counters()),
        traffic=SimpleNamespace(completed=0),
        **dict.fromkeys(("signals", "health", "prober", "recycler", "say")),
    )
    supervisor.close_listener()
    assert calls == ["ask", "close"]
