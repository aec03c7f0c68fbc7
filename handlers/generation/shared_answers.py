"""One answer for all clients that send the same request while it is written: it is computed once, and each client reads
it from its beginning. It is cancelled only when the last of them has left."""

from collections.abc import Callable
from dataclasses import dataclass, field

from marina.handlers.generation.loop import EngineFailed
from marina.handlers.generation.scheduler import Busy
from marina.handlers.generation.sequence import AnswerSource, End, GenerationTask, Piece


@dataclass
class SharedAnswer:
    """An answer that is being written for `task`, its pieces so far, and the ids of the requests that read it."""

    task: GenerationTask
    source: AnswerSource
    pieces: list[Piece] = field(default_factory=list)
    readers: set[str] = field(default_factory=set)


class SharedReader:
    """A shared answer as one of its readers gets it, an `AnswerSource`."""

    def __init__(self, answer: SharedAnswer, key: bytes, task: GenerationTask) -> None:
        self.answer, self.key, self.task = answer, key, task
        self._taken = 0

    @property
    def end(self) -> End | None:
        return self.answer.source.end

    @property
    def is_ready(self) -> bool:
        return len(self.answer.pieces) > self._taken or self.answer.source.is_ready

    def take(self) -> list[Piece]:
        self.answer.pieces += self.answer.source.take()
        new = self.answer.pieces[self._taken :]
        self._taken += len(new)
        return new


class SharedAnswers:
    """The answers being written that several clients may read; `submit` starts one. Used by one thread."""

    def __init__(self, submit: Callable[[GenerationTask], AnswerSource]) -> None:
        self._submit = submit
        self._answers: dict[bytes, SharedAnswer] = {}
        self._readers: dict[str, SharedReader] = {}

    def join_or_submit(self, key: bytes, task: GenerationTask, *, joins: bool) -> tuple[AnswerSource, bool]:
        """The answer to the task, and whether it was already being written. Raises what `submit` raises.

        A request with a deadline shares nothing, because its deadline may cut the answer off. An interactive request
        does not wait for the answer of a batch request."""
        if task.deadline is not None:
            return self._submit(task), False
        answer = self._answers.get(key) if joins else None
        is_joined = answer is not None and answer.source.end != "error" and answer.task.priority <= task.priority
        if answer is None or not is_joined:
            answer = self._answers[key] = SharedAnswer(task, self._submit(task))
        reader = self._readers[task.id] = SharedReader(answer, key, task)
        answer.readers.add(task.id)
        return reader, is_joined

    def leave(self, request_id: str) -> str | None:
        """A client has left: returns the id of the task that nobody reads any longer, None if others still do."""
        reader = self._readers.pop(request_id, None)
        if reader is None:
            return request_id
        answer = reader.answer
        answer.readers.discard(request_id)
        if answer.readers:
            return None
        if self._answers.get(reader.key) is answer:
            del self._answers[reader.key]
        return answer.task.id

    def restart_failed(self) -> None:
        """Computes a failed answer once more for those who had joined it. The same request has the same answer, so they
        continue where they were."""
        for request_id, reader in list(self._readers.items()):
            failed = reader.answer
            if failed.source.end != "error" or failed.task.id == request_id:
                continue
            self.leave(request_id)
            try:
                restarted, _ = self.join_or_submit(reader.key, reader.task, joins=True)
            except (Busy, EngineFailed):
                continue
            assert isinstance(restarted, SharedReader)
            reader.answer = restarted.answer
            self._readers[request_id] = reader
