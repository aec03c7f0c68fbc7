"""TorchServe's own counts, read in a thread of their own so that a TorchServe that does not answer blocks no page."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from marina.server.java import Counters, Door, Frontend, NoAnswerError, NoDoorError, OpenCounts
from marina.server.watching.health import Health

# TorchServe answers in milliseconds, or in hundreds of them under overload. If it has not answered the last question,
# it gets less time for the next.
_PATIENCE_S, _HASTE_S = 2.0, 0.1


class TorchServeCounts:
    """The newest counts that TorchServe has given. Not thread-safe."""

    def __init__(self, frontend: Frontend, door: Door, health: Health) -> None:
        self._frontend, self._door, self._health = frontend, door, health
        self._thread = ThreadPoolExecutor(1, "torchserve-counts")
        self._question: Future[bool] | None = None
        self.counters = Counters()
        self.open = OpenCounts()
        self.answered = True
        """False while `counters` or `open` is out of date, because the last question was not answered in time."""

    def refresh(self) -> None:
        """Asks for new counts, unless TorchServe is stopped or still owes an answer, and waits a moment for them."""
        if self._health.java_is_stopped:
            self.answered = False
            return
        if self._question is None or self._question.done():
            self._question = self._thread.submit(self._ask)
        done, _ = wait([self._question], timeout=_PATIENCE_S if self.answered else _HASTE_S)
        self.answered = bool(done) and self._question.result()

    def _ask(self) -> bool:
        """Returns true if both were answered. Otherwise TorchServe is not up yet, hangs or is very busy, and the old
        counts stay."""
        answers = 0
        with suppress(NoAnswerError):
            self.counters = self._frontend.counters()
            answers += 1
        with suppress(NoDoorError):
            self.open = self._door.count()
            answers += 1
        return answers == 2
