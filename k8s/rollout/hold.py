"""The lock on a release: taken before the first change, renewed by a thread, released with the last state."""

import getpass
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from config.errors import MarinaError
from config.progress import Progress
from k8s.rollout.history import HOLD_S, State, Store
from k8s.rollout.placement import Placement
from k8s.rollout.record import RolloutRecord, now

RENEW_S = HOLD_S / 3


class Hold:
    """While it lasts, nobody else changes the release."""

    def __init__(self, store: Store, state: State) -> None:
        self._store = store
        # As it was last written to the cluster.
        self.state = state
        self._writing = threading.Lock()

    def save(self, **changes: Any) -> State:
        """Changes and writes the state; `holder=""` releases the lock."""
        with self._writing:
            self.state = self._store.save(replace(self.state, **changes))
            return self.state

    def end(self, holder: str, **changes: Any) -> None:
        """Writes why the hold ends, if the release is still held by `holder`. The newest state is read first, because a
        write that was interrupted may have reached the cluster."""
        with suppress(MarinaError):
            stored = self._store.load()
            if stored and stored.holder == holder:
                self.state = stored
                self.save(**changes, holder="")

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renews the hold until the context ends: a wait for pods may take longer than the hold lasts."""
        done = threading.Event()
        thread = threading.Thread(target=self._renew, args=(done,), name="hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(RENEW_S):
            # If the hold was lost meanwhile, the next `save` raises the error in the main thread.
            with suppress(MarinaError), self._writing:
                if self.state.holder:
                    self.state = self._store.save(self.state)


@contextmanager
def held(placement: Placement, state: State, record: RolloutRecord, progress: Progress) -> Iterator[Hold]:
    """Takes the hold on a release. After Ctrl-C, SIGTERM or an error, writes that into the state and the record."""
    store, holder = placement.store, _holder()
    hold = Hold(store, state)
    with _sigterm_as_interrupt():
        try:
            hold.state = store.hold(state, holder)
            with hold.kept_alive():
                yield hold
        except (KeyboardInterrupt, MarinaError) as err:
            begun, current = hold.state.holder == holder, hold.state.current
            if isinstance(err, MarinaError):
                phase, text = "failed", f"{record.verb} failed: {err.message}"
            else:
                record.error = f"interrupted at {now()}"
                phase, text, begun = "interrupted", f"{record.verb} was {record.error}", True
            hold.end(holder, phase="deleting" if record.verb == "delete" else phase, message=text)
            if begun:
                target = f" --to {record.revision}" if record.verb == "rollback" else ""
                record.next = f"marina {record.verb} {placement.typed}{target} continues"
                if current:
                    record.next += f", marina rollback {placement.typed} goes back to revision {current}"
                progress.say(f"the cluster keeps what was applied; {record.next}")
            raise


def _holder() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} ({os.getpid()}-{uuid.uuid4().hex[:6]})"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Turns SIGTERM, which a cancelled CI job gets, into KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
