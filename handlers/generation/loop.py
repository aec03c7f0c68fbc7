"""The thread that runs the engine. Its steps follow each other without waiting for TorchServe's rounds, which fetch the
tokens."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from marina.handlers.generation.engine import Engine, NoToken, Token
from marina.handlers.generation.metrics import TextMetrics
from marina.handlers.generation.scheduler import Scheduler
from marina.handlers.generation.sequence import AnswerSource, GenerationTask, Piece, TextSequence

logger = logging.getLogger(__name__)

# How often an idle engine is checked: one in a process of its own may also die while it has nothing to do.
_IDLE_CHECK_S = 1.0
# TorchServe polls while any answer is open, and stops without notice when the last client has left. After `QUIET_S`
# without a poll, nothing is computed until the next one; after `ABANDONED_S`, all open answers are dropped.
QUIET_S, ABANDONED_S = 0.2, 5.0
# How long a worker lives on after its engine failed, so that its clients get an error.
_FAREWELL_S = 1.0


class EngineFailed(Exception):
    """The engine raised an error and cannot be used any longer; only a new worker helps."""


class Waitable(Protocol):
    """Something that `EngineLoop.wait` can wait for."""

    @property
    def is_ready(self) -> bool: ...


class EngineLoop:
    """Runs tasks from their submission to their end. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        make: Callable[[GenerationTask], TextSequence],
        observer: TextMetrics,
        *,
        failed: Callable[[], object],
    ) -> None:
        """`make` makes the sequence of a task. `failed` is called if the engine fails."""
        self._engine, self._scheduler, self._observer = engine, scheduler, observer
        self._make, self._tell_failure = make, failed
        # Only held for moments, never while the engine computes.
        self._changed = threading.Condition()
        self._sequences: dict[str, TextSequence] = {}
        self._running: dict[str, TextSequence] = {}
        self._closing = self._failed = False
        # When TorchServe's last round ended; None during a round.
        self._polled_at: float | None = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, task: GenerationTask) -> TextSequence:
        """Lets a task wait for a slot; raises `Busy` or `EngineFailed`."""
        with self._changed:
            if self._failed:
                raise EngineFailed
            running = [sequence.task.max_tokens - sequence.count for sequence in self._running.values()]
            sequence = self._make(task)
            self._scheduler.submit(task, time.monotonic(), running=running)
            self._sequences[task.id] = sequence
            self._changed.notify_all()
            return sequence

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Marks the time of one of TorchServe's rounds."""
        self._set_polled(None)
        try:
            yield
        finally:
            self._set_polled(time.monotonic())

    def _set_polled(self, at: float | None) -> None:
        with self._changed:
            self._polled_at = at
            self._changed.notify_all()

    def cancel(self, task_id: str) -> None:
        """Drops a task whose client has left; its slot is free before the next step. Does nothing if it has ended."""
        with self._changed:
            self._drop(task_id)

    def _drop(self, task_id: str) -> None:
        if self._sequences.pop(task_id, None):
            self._scheduler.cancel(task_id)
            self._observer.on_cancel()

    @property
    def is_abandoned(self) -> bool:
        """True after a long time without a round: then every client has left."""
        with self._changed:
            return self._unpolled_s() > ABANDONED_S

    def wake(self) -> None:
        """Lets `wait` look again, because something outside the loop may be ready."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, waitables: Iterable[Waitable], timeout_s: float) -> bool:
        """Waits until one of them is ready; False if none is in time. Raises EngineFailed if the engine has failed."""
        watched = list(waitables)
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._failed or any(waitable.is_ready for waitable in watched), timeout_s
            )
            if self._failed:
                raise EngineFailed
            return bool(ready)

    def take(self, source: AnswerSource) -> list[Piece]:
        """The pieces that its client does not have yet."""
        with self._changed:
            return source.take()

    def close(self) -> None:
        """Ends the thread after the step that it computes, and closes the engine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._engine.close()

    def _run(self) -> None:
        try:
            while self._prepare():
                self._step()
        except Exception:
            logger.exception("the engine failed")
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            self._tell_failure()

    def _prepare(self) -> bool:
        """Before a step: frees the slots of sequences that were cancelled or are overdue, and gives free slots to tasks
        that wait. Sleeps while there is nothing to compute. False when the loop is to end."""
        starting: list[TextSequence] = []
        with self._changed:
            self._observer.on_usage(self._engine.usage(), len(self._scheduler))
            if not self._changed.wait_for(
                lambda: self._closing or self._running or len(self._scheduler), _IDLE_CHECK_S
            ):
                return True
            self._changed.wait_for(lambda: self._closing or self._unpolled_s() < QUIET_S, ABANDONED_S)
            now = time.monotonic()
            if self.is_abandoned:
                for abandoned in list(self._sequences.values()):
                    # If its client is still there after all, it gets an error.
                    abandoned.fail()
                    self._drop(abandoned.task.id)
            for sequence in [running for running in self._running.values() if running.task.id not in self._sequences]:
                self._release(sequence)
            for sequence in [known for known in self._sequences.values() if known.task.is_overdue(now)]:
                sequence.finish("length")
                self._release(sequence)
            usage = self._engine.usage()
            while usage.sequences + len(starting) < usage.slots and (task := self._scheduler.take(now)):
                sequence = self._running[task.id] = self._sequences[task.id]
                sequence.started_at = now
                starting.append(sequence)
            self._changed.notify_all()
        # An engine may copy the beginning of a prompt from another slot, which takes time.
        for sequence in starting:
            with self._isolating(sequence):
                self._engine.add(sequence.task.id, sequence.task.prompt, sequence.task.sampling)
        with self._changed:
            for sequence in [failed for failed in starting if failed.end]:
                self._release(sequence)
            if starting:
                # Prompts make a step long, so the new numbers are published before it.
                self._observer.on_usage(self._engine.usage(), len(self._scheduler))
            self._changed.notify_all()
            return not self._closing

    def _unpolled_s(self) -> float:
        return 0.0 if self._polled_at is None else time.monotonic() - self._polled_at

    def _release(self, sequence: TextSequence) -> None:
        """Frees the slot of a sequence that has ended, or whose client has left."""
        self._scheduler.cancel(sequence.task.id)
        if self._running.pop(sequence.task.id, None):
            self._engine.cancel(sequence.task.id)
        if self._sequences.pop(sequence.task.id, None):
            self._observer.on_end(sequence)

    def _step(self) -> None:
        if not self._running:
            return
        begun = time.monotonic()
        tokens = self._engine.step()
        with self._changed:
            now = time.monotonic()
            self._scheduler.observe_step(now - begun)
            for token in tokens:
                if sequence := self._sequences.get(token.sequence):
                    self._accept(sequence, token, now)
            self._changed.notify_all()

    def _accept(self, sequence: TextSequence, token: Token | NoToken, now: float) -> None:
        with self._isolating(sequence):
            if isinstance(token, NoToken):
                sequence.fail()
            else:
                self._observer.on_token(sequence, sequence.accept(token, now))
        if sequence.end:
            self._release(sequence)

    @contextmanager
    def _isolating(self, sequence: TextSequence) -> Iterator[None]:
        """Lets an error end this sequence alone, not the others."""
        try:
            yield
        except Exception:
            logger.exception("answer %s failed", sequence.task.id)
            sequence.fail()


def end_worker() -> None:
    """Ends this process in a moment; TorchServe starts another one."""
    end = threading.Timer(_FAREWELL_S, os._exit, (1,))
    end.daemon = True
    end.start()
