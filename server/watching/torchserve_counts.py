"""What TorchServe says of itself, asked beside the page that shows it: one that does not answer holds nobody up."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from server.java import Counters, Door, Frontend, NoAnswerError, NoDoorError, OpenCounts
from server.watching.health import Health

# It answers in milliseconds, under overload in hundreds of them. Who owes an answer already gets less time.
_PATIENCE_S, _HASTE_S = 2.0, 0.1


class TorchServeCounts:
    """The last that is known; for one caller at a time."""

    def __init__(self, frontend: Frontend, door: Door, health: Health) -> None:
        self._frontend, self._door, self._health = frontend, door, health
        self._thread = ThreadPoolExecutor(1, "asking")
        self._question: Future[bool] | None = None
        self.counters = Counters()
        self.open = OpenCounts()
        self.answered = True
        """Whether both are of now."""

    def look(self) -> None:
        """Asks again, unless a question is still open or nobody is there to answer, and waits for a moment."""
        if self._health.java_is_stopped:
            self.answered = False
            return
        if self._question is None or self._question.done():
            self._question = self._thread.submit(self._ask)
        done, _ = wait([self._question], timeout=_PATIENCE_S if self.answered else _HASTE_S)
        self.answered = bool(done) and self._question.result()

    def _ask(self) -> bool:
        """Without an answer it is not up yet, hangs, or is very busy: the last counts are still true."""
        answers = 0
        with suppress(NoAnswerError):
            self.counters = self._frontend.counters()
            answers += 1
        with suppress(NoDoorError):
            self.open = self._door.count()
            answers += 1
        return answers == 2
