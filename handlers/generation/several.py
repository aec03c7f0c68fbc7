"""Several answers to one request: to each of its prompts, and more than one to the same prompt."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from marina.handlers.generation.loop import EngineFailed
from marina.handlers.generation.scheduler import Busy
from marina.handlers.generation.sequence import AnswerSource, End, GenerationTask, Piece


class SeveralAnswers:
    """The answers to tasks, an `AnswerSource`, whose pieces have the numbers of their tasks.

    Up to `together` of them are written at the same time, and each of the others when one of these has ended, so that a
    request with many prompts takes no more places than others."""

    def __init__(
        self,
        tasks: Sequence[GenerationTask],
        submit: Callable[[GenerationTask], AnswerSource],
        cancel: Callable[[str], None],
        *,
        together: int,
    ) -> None:
        """Raises what `submit` raises."""
        self._tasks, self._submit, self._cancel = tasks, submit, cancel
        self._running: dict[int, AnswerSource] = {}
        self._begun = 0
        self._has_failed = False
        try:
            for task in tasks[:together]:
                self._begin(task)
        except (Busy, EngineFailed):
            self.cancel()
            raise

    def _begin(self, task: GenerationTask) -> None:
        self._running[self._begun] = self._submit(task)
        self._begun += 1

    @property
    def end(self) -> End | None:
        if self._has_failed or any(source.end == "error" for source in self._running.values()):
            return "error"
        return None if self._running else "stop"

    @property
    def is_ready(self) -> bool:
        return self.end == "error" or any(source.is_ready for source in self._running.values())

    def take(self) -> list[Piece]:
        taken: list[Piece] = []
        for number, source in list(self._running.items()):
            pieces = [replace(piece, choice=number) for piece in source.take()]
            taken += pieces
            if pieces and pieces[-1].end is not None:
                del self._running[number]
                self._follow()
        return taken

    def _follow(self) -> None:
        if self._begun < len(self._tasks):
            try:
                self._begin(replace(self._tasks[self._begun], follows=True))
            except (Busy, EngineFailed):
                self._has_failed = True

    def cancel(self) -> None:
        """Stops computing all of them."""
        for number in self._running:
            self._cancel(self._tasks[number].id)
