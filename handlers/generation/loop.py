"""The thread that runs the engine, apart from TorchServe's round trips: steps follow each other whether or not somebody
is asking for their tokens just then."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from handlers.generation.engine import Engine, NoToken, Token, Usage
from handlers.generation.scheduler import Scheduler
from handlers.generation.sequence import Answering, Piece, Sequence, Wish

logger = logging.getLogger(__name__)

# An engine that works in a process of its own may end while it has nothing to do, too.
_LOOK_S = 1.0
# TorchServe asks again and again while any answer is open, and not once more when the last client has left. After so
# long a silence nothing more is computed, until it asks; after the other, what was begun is forgotten.
QUIET_S, ABANDONED_S = 0.2, 5.0
# An engine that failed does not come back, but its worker does; before that, its clients hear of it.
_FAREWELL_S = 1.0


class EngineFailed(Exception):
    """The engine raised, and nothing more comes of it: only a new worker helps."""


class Awaited(Protocol):
    """What can be waited for."""

    @property
    def is_ready(self) -> bool: ...


class Watcher(Protocol):
    """What is called for every token; in the loop's thread, or in that of the one who cancels."""

    def token(self, sequence: Sequence, gap_s: float | None) -> None: ...

    def ended(self, sequence: Sequence) -> None: ...

    def cancelled(self, sequence: Sequence) -> None: ...

    def usage(self, usage: Usage, waiting: int) -> None: ...


class Loop:
    """Sequences from their wish to their end. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        make: Callable[[Wish, float], Sequence],
        watcher: Watcher,
        *,
        failed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`failed` is called when the engine has, which is the end of everything here."""
        self._engine, self._scheduler, self._make, self._watcher, self._clock = engine, scheduler, make, watcher, clock
        self._tell_failure = failed
        # Held for moments; never while the engine computes.
        self._changed = threading.Condition()
        self._sequences: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._closing = self._failed = False
        # When TorchServe was last there; None while it is.
        self._left_at: float | None = clock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, wish: Wish) -> Sequence:
        """Takes a wish in, or raises `Busy`, or `EngineFailed`."""
        with self._changed:
            if self._failed:
                raise EngineFailed
            now = self._clock()
            running = [sequence.wish.max_tokens - sequence.count for sequence in self._running.values()]
            sequence = self._make(wish, now)
            self._scheduler.submit(wish, now, running=running)
            self._sequences[wish.id] = sequence
            self._changed.notify_all()
            return sequence

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While TorchServe is there for what there is."""
        self._set_left(None)
        try:
            yield
        finally:
            self._set_left(self._clock())

    def _set_left(self, at: float | None) -> None:
        with self._changed:
            self._left_at = at
            self._changed.notify_all()

    def cancel(self, wish: str) -> None:
        """Its client is gone: the slot is free before the next step. One that has ended is ignored."""
        with self._changed:
            self._forget(wish)

    def _forget(self, wish: str) -> None:
        if sequence := self._sequences.pop(wish, None):
            self._scheduler.cancel(wish)
            self._watcher.cancelled(sequence)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody has asked for anything for long, so that whoever was open has left."""
        with self._changed:
            return self._silent_s() > ABANDONED_S

    def wake(self) -> None:
        """Something else that is waited for is ready."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, sequences: Iterable[Awaited], timeout_s: float) -> bool:
        """Whether one of them has something to send, after waiting for it; EngineFailed when none ever will."""
        watched = list(sequences)
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._failed or any(awaited.is_ready for awaited in watched), timeout_s
            )
            if self._failed:
                raise EngineFailed
            return bool(ready)

    def take(self, sequence: Answering) -> list[Piece]:
        """What its client has not got yet."""
        with self._changed:
            return sequence.take()

    def close(self) -> None:
        """Ends the thread after its step."""
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
        """Removes those that left and takes in those that waited; sleeps while there are none. False when it is to
        end."""
        with self._changed:
            self._watcher.usage(self._engine.usage(), len(self._scheduler))
            if not self._changed.wait_for(lambda: self._closing or self._running or len(self._scheduler), _LOOK_S):
                return True
            self._changed.wait_for(lambda: self._closing or self._silent_s() < QUIET_S, ABANDONED_S)
            now = self._clock()
            if self.is_abandoned:
                for abandoned in list(self._sequences.values()):
                    # Should somebody be there after all, nothing that is waited for will come.
                    abandoned.fail()
                    self._forget(abandoned.wish.id)
            for sequence in [running for running in self._running.values() if running.wish.id not in self._sequences]:
                self._release(sequence)
            for sequence in [known for known in self._sequences.values() if known.is_overdue(now)]:
                sequence.finish("length")
                self._release(sequence)
            held = len(self._running)
            while self._has_room() and (wish := self._scheduler.take(now)):
                sequence = self._running[wish.id] = self._sequences[wish.id]
                with self._alone(sequence):
                    self._engine.add(wish.id, wish.prompt, wish.sampling)
                if sequence.end:
                    self._release(sequence)
            if len(self._running) > held:
                # A first step may take long.
                self._watcher.usage(self._engine.usage(), len(self._scheduler))
            self._changed.notify_all()
            return not self._closing

    def _silent_s(self) -> float:
        return 0.0 if self._left_at is None else self._clock() - self._left_at

    def _has_room(self) -> bool:
        usage = self._engine.usage()
        return usage.sequences < usage.slots

    def _release(self, sequence: Sequence) -> None:
        """It has ended, or its client has left."""
        self._scheduler.cancel(sequence.wish.id)
        if self._running.pop(sequence.wish.id, None):
            self._engine.cancel(sequence.wish.id)
        if self._sequences.pop(sequence.wish.id, None):
            self._watcher.ended(sequence)

    def _step(self) -> None:
        if not self._running:
            return
        begun = self._clock()
        tokens = self._engine.step()
        with self._changed:
            now = self._clock()
            self._scheduler.step.observe(now - begun)
            for token in tokens:
                if sequence := self._sequences.get(token.sequence):
                    self._accept(sequence, token, now)
            self._changed.notify_all()

    def _accept(self, sequence: Sequence, token: Token | NoToken, now: float) -> None:
        with self._alone(sequence):
            if isinstance(token, NoToken):
                sequence.fail()
            else:
                self._watcher.token(sequence, sequence.accept(token, now))
        if sequence.end:
            self._release(sequence)

    @contextmanager
    def _alone(self, sequence: Sequence) -> Iterator[None]:
        """An error is the fault of this answer, which ends, and of no other."""
        try:
            yield
        except Exception:
            logger.exception("answer %s failed", sequence.wish.id)
            sequence.fail()


def end_worker() -> None:
    """This process, in a moment; TorchServe starts another one."""
    end = threading.Timer(_FAREWELL_S, os._exit, (1,))
    end.daemon = True
    end.start()
