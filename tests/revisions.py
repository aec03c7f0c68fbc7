"""Servers behind the pods of two revisions, which have answered more at each reading of their page `/latencies`."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from json_server import answering

from marina.config.histogram import Histogram
from marina.config.latency import EDGES_MS

SHA256 = "ab" * 32


@dataclass
class Revision:
    """The server behind the pods of one revision. Each reading of its latencies finds a hundred more answers."""

    slower: float = 1.0
    failed: float = 0.0
    requests: int = 100
    started: float = 1.0
    port: int = 0
    sha256: str = SHA256
    answer: str = "whelk"
    otherwise: dict[bytes, str] = field(default_factory=dict)
    """Other answers, by the body that is sent."""
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    good: Histogram = field(default_factory=lambda: Histogram(EDGES_MS))
    bad: Histogram = field(default_factory=lambda: Histogram(EDGES_MS))
    on_reading: Callable[[], None] = lambda: None

    def page(self) -> dict[str, Any]:
        self.on_reading()
        for _ in range(self.requests):
            answers = self.bad if self.dice.random() < self.failed else self.good
            answers.add(20 * self.slower * self.dice.lognormvariate(0, 0.2))
        answers = {"200": self.good.to_data(), "500": self.bad.to_data()}
        plain = {"schema": "marina.latencies/1", "sha256": self.sha256, "started": self.started}
        return plain | {"worker_restarts": 0, "memory_bytes": 10**8, "answers": answers}


@contextmanager
def serving(revision: Revision) -> Iterator[None]:
    lock = threading.Lock()

    def get(path: str) -> dict[str, Any]:
        with lock:
            return revision.page() if path == "/latencies" else {"sha256": revision.sha256}

    with answering(
        get, lambda _, body, __: (200, {"top": revision.otherwise.get(body, revision.answer)})
    ) as revision.port:
        yield
