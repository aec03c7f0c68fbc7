"""A judge that stays: one gate after another, each for as long as pods of a new version serve beside the old ones.

Who starts and ends these pods, and names them, is another engine. The judge only asks names for addresses: those behind
`new` that are not behind `old` are of a new version. Between rollouts both names lead to the same pods, or `new` leads
to none."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from marina.config.errors import ClusterError
from marina.config.measured import Reason
from marina.loadtest.gating.gate import LiveGate
from marina.loadtest.gating.judgement import LiveVerdict
from marina.loadtest.gating.service import VerdictPage, read_page

_READERS = 16
# A pod that is not ready for some seconds is not listed for as long: after so many windows without one, the new version
# is gone, and what was said of it does not hold for the next one.
GONE_AFTER = 12
# How many windows of the old version alone are kept, to say what a gate needs.
_WATCHED = 720


class Follower:
    """Reads the pages of all pods at every window's end, and puts what follows on a page."""

    def __init__(
        self, make_gate: Callable[[], LiveGate], old: Sequence[str], new: Sequence[str], page: VerdictPage
    ) -> None:
        self._make_gate, self._old, self._new, self._page = make_gate, old, new, page
        self._begin(set())

    def _begin(self, pods: set[str]) -> None:
        """Makes a gate for these pods; without any it watches the old version."""
        self._gate, self._pods = self._make_gate(), pods
        self._begun = time.monotonic()
        self._windows = self._absent = 0
        self._page.verdict, self._page.text = None, "no new version serves" if not pods else "the gate stands"

    def follow(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Goes on until it is told to stop."""
        with ThreadPoolExecutor(_READERS) as pool:
            while not stop.is_set():
                before = self._page.to_data()["text"]
                self._window(pool)
                if (text := self._page.to_data()["text"]) != before:
                    say(text)
                stop.wait(self._gate.window_s)

    def _window(self, pool: ThreadPoolExecutor) -> None:
        old, new = addresses(self._old), addresses(self._new)
        if old is None or new is None:
            # The name server did not answer, which says nothing about the pods.
            return
        new -= old
        if self._pods and not new:
            self._absent += 1
            if self._absent < GONE_AFTER:
                return
        if (new or self._pods) and not new & self._pods:
            self._watch_from(new)
        self._absent = 0
        self._pods |= new
        if self._page.verdict is None:
            self._observe(pool, old, new)

    def _watch_from(self, new: set[str]) -> None:
        if new and not self._pods:
            # What this gate learned of the old version alone it goes on with.
            self._pods, self._begun, self._windows = set(new), time.monotonic(), 0
            self._page.text = "the gate stands"
        else:
            self._begin(new)

    def _observe(self, pool: ThreadPoolExecutor, old: set[str], new: set[str]) -> None:
        urls = [*sorted(old), *sorted(new)]
        pages = {url: page for url, page in zip(urls, pool.map(read_page, urls), strict=True) if page}
        gate, over = self._gate, bool(new) and time.monotonic() - self._begun >= self._gate.seconds
        try:
            gate.observe(*({url: page for url, page in pages.items() if url in side} for side in (old, new)))
            if new:
                self._page.verdict = gate.verdict(over=over)
        except ClusterError as err:
            self._page.text = err.message
            if new:
                # A version without that page cannot be judged, however long this gate stands.
                self._page.verdict = LiveVerdict.without_figures(Reason(id="page", text=err.message))
            return
        self._windows += 1
        if new and self._windows == gate.announced_after:
            self._page.text = gate.announcement()
        elif not new and self._windows >= _WATCHED:
            self._begin(set())


def addresses(urls: Sequence[str]) -> set[str] | None:
    """The address of every pod behind these; None if it cannot be known now."""
    found: set[str] = set()
    for url in urls:
        parts = urlsplit(url)
        try:
            known = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
        except socket.gaierror as err:
            # No such name: a Service without pods has no addresses.
            if err.errno not in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                return None
            continue
        for _, _, _, _, (host, port, *_) in known:
            if isinstance(host, str):
                shown = f"[{host}]" if ":" in host else host
                found.add(f"{parts.scheme}://{shown}:{int(port)}")
    return found
