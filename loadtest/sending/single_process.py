"""A load that a single process sends: Locust's local runner with one user."""

import time

from gevent.queue import Queue
from locust.env import Environment

from loadtest.measuring import GeneratorHealth, Measurement, Second
from loadtest.sending.engine import OpenLoop, user_class
from loadtest.sending.generator import OnSecond
from loadtest.sending.plan import LoadPlan


class SingleProcessLoad:
    """Sends one run."""

    def __init__(self, plan: LoadPlan, on_second: OnSecond) -> None:
        self._on_second = on_second
        self._seconds = 0
        self._result: Queue[Measurement | Exception] = Queue()
        self.environment = Environment(user_classes=[user_class(self._follow)], host=plan.request.url)
        self._engine = OpenLoop(plan, self.environment, self._report_second)

    def stop(self) -> None:
        self._engine.stop()

    def run(self) -> Measurement:
        """Sends the schedule, starting now."""
        runner = self.environment.create_local_runner()
        runner.start(1, spawn_rate=1)
        try:
            result = self._result.get()
        finally:
            runner.quit()
        if isinstance(result, Exception):
            raise result
        return result

    def _follow(self) -> None:
        try:
            self._result.put(self._engine.run(time.perf_counter()))
        except Exception as err:
            # Without this, Locust would start the task again.
            self._result.put(err)

    def _report_second(self, beat: GeneratorHealth, second: Second) -> None:
        self._seconds += 1
        self._on_second(self._seconds, second, (beat,))
