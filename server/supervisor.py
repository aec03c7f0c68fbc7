"""Runs one server from start to end, in the main thread: loading, warming, ready, draining, stopped.

The supervisor is PID 1 of the pod. It starts Java and nothing else, reaps orphans, and its exit code says how the
server ended."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from marina.config.sections import Serving
from marina.config.spec import Spec
from marina.server.java.child import Child
from marina.server.java.door import NoDoorError, OpenCounts
from marina.server.system.exits import Exit
from marina.server.system.processes import ProcessHandles
from marina.server.system.signals import Signals
from marina.server.system.sockets import Sockets, read_sockets
from marina.server.watching.drain import drain
from marina.server.watching.health import Health
from marina.server.watching.probe import Prober
from marina.server.watching.renewals import Renewals

# How often the state is polled: while the server starts or recovers, and while it is ready and deaths wake us up
# anyway.
_POLL_S, _CALM_POLL_S = 0.02, 0.25
_WATCHING = ("loading", "warming", "ready", "recovering")


@dataclass(kw_only=True, eq=False)
class Supervisor:
    """Watches one TorchServe until it ends."""

    child: Child
    signals: Signals
    health: Health
    prober: Prober
    port: int
    renewals: Renewals
    say: Callable[[str], None]
    send_last_spans: Callable[[], None] = lambda: None
    state: str = "loading"
    _handles: ProcessHandles = field(default_factory=ProcessHandles)
    _door_ready: bool = False

    def run(self, spec: Spec, *, ready: Callable[[], None]) -> Exit:
        """Blocks until a signal, or a failure that only a new server can cure. Calls `ready` once, when the server
        first becomes ready."""
        while not self.signals.stops:
            self._wait()
            self.child.reap()
            if not self.child.running:
                return self._fail(*self.child.describe_end(), Exit.JAVA_DIED)
            if self.prober.model_unknown:
                return self._fail("TorchServe could not load the MAR", "its last lines above say why")
            if (failing_s := self.health.failing_for_s()) > (window_s := spec.retry_window_s):
                text = f"a worker has been failing for {failing_s:.0f} s, longer than {window_s} s"
                return self._fail(text, "its last lines above say why")
            self._follow_state(ready)
        return self._stop(spec.serving)

    def _wait(self) -> None:
        """Returns after a signal, a worker's death, or the polling interval."""
        ends = self._handles.for_processes(self.health.processes)
        calm = self.state == "ready" and ends is not None
        self.signals.wait(_CALM_POLL_S if calm else _POLL_S, ends=ends or ())

    def readiness(self) -> dict[str, object]:
        """The body of `/ready`."""
        missing = self.health.missing()
        if missing and self.prober.last_failure:
            missing.append(f"last inference of the sample: {self.prober.last_failure}")
        ready = sum(worker.serving for worker in self.health.workers())
        return {
            "ready": not missing,
            "state": self._state() if self.state in _WATCHING else self.state,
            "missing": missing,
            "workers": {"declared": self.health.declared, "ready": ready},
        }

    def _follow_state(self, ready: Callable[[], None]) -> None:
        if self.health.notice_deaths():
            self.prober.ask_now()
        self.renewals.step()
        before, state = self.state, self._state()
        self._update_door(ready=state == "ready")
        if state == before:
            return
        self.state = state
        if state == "ready" and before in ("loading", "warming"):
            if why_cannot_refuse := self.child.door.why_cannot_refuse:
                self.say(f"a stop may reset connections that TorchServe has not accepted: {why_cannot_refuse}")
            ready()
        elif state == "recovering":
            self.say(f"not ready: {'; '.join(self.health.missing())}")
        elif state == "ready":
            self.say("ready again")
        else:
            self.say(f"{state} …")

    def _update_door(self, *, ready: bool) -> None:
        """Tells the door whether the server is ready, because clients may ask for that on the inference port as well.
        If Java is too busy to listen, the next poll tries again. A stopped Java is skipped: it answers nobody, and
        waiting for it would delay the handling of a signal."""
        if ready != self._door_ready and not self.health.java_is_stopped:
            with suppress(NoDoorError):
                self.child.door.set_ready(ready=ready)
                self._door_ready = ready

    def _state(self) -> str:
        if self.health.ready:
            return "ready"
        if self.state in ("ready", "recovering"):
            return "recovering"
        return "loading" if self.health.generation is None else "warming"

    def _stop(self, serving: Serving) -> Exit:
        first = self.signals.stops[0]
        self.state = "draining"
        self.health.set_unready_reason("the server is stopping")
        self._update_door(ready=False)
        # Not the last state: since then the server may have become ready, said so to clients, and become unready again.
        if not self.health.was_ready:
            self.say(f"{first.name}: stopped before it was ready")
            self._end()
            return Exit.DRAINED
        # Ctrl-C and the end of a terminal come from a person: no load balancer has to notice the end first.
        propagation_s = 0.0 if first in (signal.SIGINT, signal.SIGHUP) else serving.drain_propagation_s
        result = drain(self, propagation_s=propagation_s, timeout_s=serving.drain_timeout_s, say=self.say)
        died = not self.java_runs()
        self.send_last_spans()
        self._end()
        after = f"stopped after {result.took_s:.1f} s"
        if result.reason is None:
            self.say(f"{after}: every request that was sent before the listener closed is answered")
            return Exit.DRAINED
        unread = f" and {result.unread} answers that their clients did not read" if result.unread else ""
        self.say(f"{after} with {result.left} requests open{unread}: {result.reason}")
        if died:
            return Exit.JAVA_DIED
        return Exit.CUT if result.left or result.unread else Exit.DRAINED

    def _fail(self, text: str, hint: str | None, end: Exit = Exit.MODEL_FAILED) -> Exit:
        self.state = "failed"
        self.health.set_unready_reason("the server is stopping")
        self._end()
        self.say(f"error: {text}" + (f"\n\nhint: {hint}" if hint else ""))
        return end

    def _end(self) -> None:
        self.prober.stop()
        self._handles.close()
        self.child.kill()
        self.state = "stopped"

    # The methods of `marina.server.watching.drain.Drainable`.

    def end_connections(self) -> None:
        with suppress(NoDoorError):
            self.child.door.end_connections()

    def refuse_new_connections(self) -> bool:
        return self.child.door.refuse_new_connections()

    def close_listener(self) -> None:
        with suppress(NoDoorError):
            self.child.door.close_listener()

    def count(self) -> OpenCounts | None:
        try:
            return self.child.door.count()
        except NoDoorError:
            return None

    def sockets(self) -> Sockets:
        return read_sockets(self.port)

    def end_answers(self) -> None:
        self.child.end_answers()

    def java_runs(self) -> bool:
        self.child.reap()
        return self.child.running

    def second_signal_within(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while len(self.signals.stops) < 2 and self.java_runs() and (left := until - time.monotonic()) > 0:
            self.signals.wait(min(left, _POLL_S))
        return len(self.signals.stops) > 1
