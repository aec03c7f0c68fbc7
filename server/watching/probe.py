"""A thread that polls TorchServe for the state of its workers, and proves with the sample that they answer."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from marina.server.java.frontend import Frontend, NoAnswerError
from marina.server.java.traffic import Traffic
from marina.server.watching.health import Health

# Java compiles its request path while it is used, and the first client must not pay for that: the first inference of
# the digits model took 22 ms, the twentieth 8 ms, and the median became 6 ms. With a large model, the time of the model
# soon dwarfs the rest: after a few inferences they get no faster, and each further one delays the start.
WARMING_INFERENCES = 20
WARMING_S = 5.0
_UNNOTICED_S = 0.2
_STEADY, _FASTER = 4, 0.9
_STARTING_S, _READY_S, _GPU_S = 0.1, 1.0, 10.0


class Prober:
    """Keeps `health` up to date, in a thread of its own, until `stop`."""

    def __init__(
        self,
        frontend: Frontend,
        health: Health,
        traffic: Traffic,
        sample: tuple[bytes, str],
        *,
        timeout_s: float,
        gpu: bool,
    ) -> None:
        self._frontend, self._health, self._traffic = frontend, health, traffic
        self._sample = sample
        self._timeout_s = timeout_s
        self._ready_s = _GPU_S if gpu else _READY_S
        self._starting_s = 1.0 if gpu else _STARTING_S
        self._wake = threading.Event()
        self._stopped = False
        self._inference_requested = False
        self._warmed = False
        self.model_unknown = False
        self.last_failure = ""
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)
        self._thread.start()

    def ask_now(self) -> None:
        """Polls TorchServe now, because a worker's state has changed."""
        self._wake.set()

    def request_inference(self) -> None:
        """Sends one inference soon, so that an idle worker gets a batch."""
        self._inference_requested = True
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            self._ask()
            while not self._stopped and (generation := self._health.unproven) is not None:
                if self._prove():
                    self._health.prove(generation)
                else:
                    self._pause(self._starting_s)
                    self._ask()
            if self._inference_requested:
                self._inference_requested = False
                self._infer()
            self._pause(self._ready_s if self._health.ready else self._starting_s)

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _ask(self) -> None:
        with suppress(NoAnswerError, OSError):
            description = self._frontend.describe()
            self.model_unknown = not description.known
            self._health.observe(description)

    def _prove(self) -> bool:
        """Sends one inference; the first time, as many as it takes until they get no faster. True if all succeeded."""
        if self._warmed:
            return self._infer()
        durations: list[float] = []
        while len(durations) < WARMING_INFERENCES and sum(durations) < WARMING_S:
            begun = time.monotonic()
            if not self._infer():
                return False
            durations.append(time.monotonic() - begun)
            if sum(durations) > _UNNOTICED_S and is_steady(durations):
                break
        self._warmed = True
        return True

    def _infer(self) -> bool:
        traffic = self._traffic
        try:
            status = self._frontend.infer(
                *self._sample,
                timeout_s=self._timeout_s,
                before=traffic.begin_own_inference,
                refused=traffic.withdraw_own_inference,
            )
        except NoAnswerError as err:
            self.last_failure = str(err)
            return False
        answered = 200 <= status < 300
        self.last_failure = "" if answered else f"the sample was answered with {status}"
        return answered


def is_steady(durations: Sequence[float]) -> bool:
    """True if the last few durations are no faster than the best one before them."""
    before, last = durations[:-_STEADY], durations[-_STEADY:]
    return bool(before) and min(last) > _FASTER * min(before)
