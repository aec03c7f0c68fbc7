"""`marina judge --follow`: one gate after another, as pods come and go behind two names."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from revisions import Revision, serving

from marina.loadtest.gating import GONE_AFTER, Follower, LiveGate, LiveLimits, VerdictPage, addresses, following

LIMITS = LiveLimits(error_rate=0.01, regression=0.2)


class Rig:
    """A follower between two names, and the servers behind them."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page, self.old, self.new = VerdictPage(), dict[str, Revision](), dict[str, Revision]()
        self.windows, self._stack = 0, stack
        self.unknown = False
        monkeypatch.setattr(following, "addresses", self._addresses)

    def _addresses(self, urls: tuple[str, ...]) -> set[str] | None:
        if urls == ("old",):
            self.windows += 1
        return None if self.unknown else set(self.old if urls == ("old",) else {**self.old, **self.new})

    def start(self, **how: Any) -> tuple[str, Revision]:
        revision = Revision(dice=random.Random(len(self.old) + 7), **how)
        self._stack.enter_context(serving(revision))
        return f"http://127.0.0.1:{revision.port}", revision

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.page.to_data()
            time.sleep(0.005)

    def after_windows(self, count: int) -> None:
        last = self.windows + count
        self.until(lambda: self.windows >= last)


def short_gate() -> LiveGate:
    gate = LiveGate(LIMITS, minutes=1)
    gate.window_s, gate.seconds = 0.005, 1.0
    return gate


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with ExitStack() as stack:
        made, stop = Rig(stack, monkeypatch), threading.Event()
        made.old = dict([made.start()])
        follower = Follower(short_gate, ("old",), ("new",), made.page)
        thread = threading.Thread(target=follower.follow, args=(stop, lambda _: None))
        thread.start()
        try:
            yield made
        finally:
            stop.set()
            thread.join()


def test_a_gate_begins_with_new_pods_and_its_verdict_ends_with_them(rig: Rig) -> None:
    rig.after_windows(3)
    assert rig.page.to_data()["text"] == "no new version serves"
    url, bad = rig.start(failed=0.3)
    rig.new = {url: bad}
    rig.until(lambda: rig.page.result == "FAIL")
    rig.new = {}
    rig.until(lambda: rig.page.result == "RUNNING")
    rig.new = dict([rig.start()])
    rig.until(lambda: rig.page.result == "PASS")
    # Promoted: both names lead to the same pods.
    rig.old, rig.new = rig.new, {}
    rig.until(lambda: rig.page.result == "RUNNING")
    assert rig.page.to_data()["text"] == "no new version serves"


def test_another_new_version_gets_a_gate_of_its_own(rig: Rig) -> None:
    rig.new = dict([rig.start()])
    rig.until(lambda: rig.page.result == "PASS")
    rig.new = dict([rig.start(slower=2.0)])
    rig.until(lambda: rig.page.result == "FAIL")


def test_a_new_pod_that_is_not_listed_for_a_moment_keeps_its_verdict(rig: Rig) -> None:
    url, bad = rig.start(failed=0.3)
    rig.new = {url: bad}
    rig.until(lambda: rig.page.result == "FAIL")
    rig.unknown = True
    rig.after_windows(3 * GONE_AFTER)
    assert rig.page.result == "FAIL"


def test_a_server_that_was_started_again_is_a_fail(rig: Rig) -> None:
    url, new = rig.start()
    rig.new = {url: new}
    rig.after_windows(5)
    new.started = 2.0
    rig.until(lambda: rig.page.result == "FAIL")
    assert "was started again" in rig.page.to_data()["text"]


def test_too_little_traffic_is_invalid(rig: Rig) -> None:
    rig.new = dict([rig.start(requests=0)])
    rig.until(lambda: rig.page.result == "INVALID")


def test_a_version_without_the_page_is_invalid(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    url, new = rig.start()
    monkeypatch.setattr(new, "page", lambda: {"error": "no such page"})
    rig.new = {url: new}
    rig.until(lambda: rig.page.result == "INVALID")
    assert "no page /latencies" in rig.page.to_data()["text"]


def test_addresses_are_those_of_every_pod_behind_a_name() -> None:
    assert addresses(["http://127.0.0.1:8090", "http://[::1]:8090"]) == {"http://127.0.0.1:8090", "http://[::1]:8090"}
    assert addresses(["http://no-such-name.invalid:8090"]) in (set(), None)
