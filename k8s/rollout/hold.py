"""The lock on a release: taken before the first change, extended by a thread, released with the last state.

Whether its holder is alive is judged as Kubernetes judges a Lease: by how long nobody has extended it by one's own
clock."""

import getpass
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from marina.config.errors import MarinaError, Refused
from marina.config.machine import stops_as_interrupt
from marina.config.progress import Progress
from marina.k8s.rollout.history import HOLD_S, Placement, State, Store
from marina.k8s.rollout.record import RolloutRecord, now

EXTEND_S = HOLD_S / 3
_POLL_S = 1.0


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

    def end(self, holder: str, **changes: Any) -> bool:
        """Writes why the hold ends; False if it never began, or was lost, or if a revision runs and nothing was
        changed. The newest state is read first, because a write that was interrupted may have reached the cluster."""
        began = self.state.holder == holder
        with suppress(MarinaError):
            stored = self._store.load()
            if began := stored is not None and stored.holder == holder:
                self.state = stored
                began = stored.phase != "deployed" or not stored.current
                self.save(**(changes if began else {}), holder="")
        return began

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Extends the hold until the context ends: a wait for pods may take longer than the hold lasts."""
        done = threading.Event()
        thread = threading.Thread(target=self._extend, args=(done,), name="hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _extend(self, done: threading.Event) -> None:
        while not done.wait(EXTEND_S):
            # If the hold was lost meanwhile, the next `save` raises the error in the main thread.
            with suppress(MarinaError), self._writing:
                if self.state.holder:
                    self.state = self._store.save(self.state)


@contextmanager
def held(
    placement: Placement, state: State, record: RolloutRecord, progress: Progress, *, words: str = ""
) -> Iterator[Hold]:
    """Takes the hold on a release. After Ctrl-C, a signal or an error, writes that into the state and the record. The
    command that continues ends in `words`."""
    store, holder = placement.store, _holder()
    hold = Hold(store, state)
    with stops_as_interrupt():
        if state.holder:
            _outlive(placement, state, progress)
        try:
            hold.state = store.save(replace(state, holder=holder))
            with hold.kept_alive():
                yield hold
        except (KeyboardInterrupt, MarinaError) as err:
            current = hold.state.current
            if isinstance(err, MarinaError):
                phase, text = "failed", f"{record.verb} failed: {err.message}"
            else:
                record.error = f"interrupted at {now()}"
                phase, text = "interrupted", f"{record.verb} was {record.error}"
            if hold.end(holder, phase="deleting" if record.verb == "delete" else phase, message=text):
                record.running = 0
                record.next = f"marina {record.verb} {placement.typed}{words} continues"
                if current:
                    record.next += f", marina rollback {placement.typed} goes back to revision {current}"
                progress.say(f"the cluster keeps what was applied; {record.next}")
            raise


def _outlive(placement: Placement, state: State, progress: Progress) -> None:
    """Waits until a hold has expired, because its holder was killed. Raises Refused if the holder is alive."""
    text = f"`{placement.name}` is being changed by {state.holder}"
    progress.say(f"{text}, or was when that was killed: waiting up to {HOLD_S:g} s to find out")
    begun = time.monotonic()
    while time.monotonic() - begun < HOLD_S:
        time.sleep(_POLL_S)
        stored = placement.store.load()
        if stored is None or stored.version != state.version:
            raise Refused(text, hint=f"marina status {placement.typed}; then try again")


def _holder() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} ({os.getpid()}-{uuid.uuid4().hex[:6]})"
