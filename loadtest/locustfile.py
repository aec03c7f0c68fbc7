"""Plain Locust for a spec: `locust -f loadtest/locustfile.py --host http://localhost:8080 --spec SPEC`.

Web UI, `--headless`, `--processes` and distributed workers work as always; at the end the spec's objective decides the
exit code: 0 PASS, 1 FAIL, 3 INVALID. It is a closed loop, and prints a warning about that."""

import random
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gevent
from locust import User, constant, constant_throughput, events, task
from locust.env import Environment
from locust.exception import CatchResponseError

# Locust runs this file by its path, in a clone also where Marina is not installed.
if find_spec("marina") is None:
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from marina.config.errors import MarinaError
from marina.config.load import load_spec
from marina.config.record import read_package
from marina.loadtest.closed_loop import CLOSED_LOOP_WARNING, EVENTS, ClosedLoop
from marina.loadtest.judging import client_timeout_s, objective_of
from marina.loadtest.sending import (
    BROKEN,
    Checker,
    Client,
    LoadRequest,
    RequestResult,
    packaged_request,
    send_and_check,
    spec_request,
    with_samples,
)

_DEFAULT_SPEC = "spec.yaml"


def add_options(parser: Any) -> None:
    group = parser.add_argument_group("Marina")
    text = "the spec with the objective (default: ./spec.yaml)"
    group.add_argument("--spec", env_var="MARINA_SPEC", default=_DEFAULT_SPEC, help=text)
    group.add_argument("--out", env_var="MARINA_OUT", default="", help="build folder; default: build/<name>")
    group.add_argument("--pace", type=float, default=0.0, help="requests/s of each user; 0: as fast as answers arrive")


def prepare(environment: Environment, **_: object) -> None:
    """Reads the spec, encodes its sample once, and attaches the verdict."""
    options: Any = environment.parsed_options
    try:
        spec = load_spec(Path(options.spec), files=False)
        out = Path(options.out or Path("build") / spec.name)
        packaged = (out / "package.json").exists()
        package = read_package(out) if packaged else None
        request = packaged_request(package, out, "") if package else spec_request(spec, "")
        request = with_samples(request, spec, package.record if package else None)
        objective = objective_of(spec)
        ClosedLoop(environment, objective).attach()
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        # Otherwise it would be 1, as after a FAIL.
        sys.exit(err.exit_code)
    ModelUser.request = request
    ModelUser.timeout_s = client_timeout_s(objective)
    ModelUser.checkers = [Checker(body.expected) for body in request.all_bodies]
    print(CLOSED_LOOP_WARNING, file=sys.stderr)
    # gevent's clock was not updated during these imports, which would shorten the time of `-t`.
    gevent.get_hub().loop.update_now()


def set_pace(environment: Environment, **_: object) -> None:
    """Sets the pace of users when the test starts: only then has a remote worker received its master's options."""
    options: Any = environment.parsed_options
    ModelUser.wait_time = constant_throughput(options.pace) if options.pace else constant(0)


class ModelUser(User):
    """A user that sends the spec's samples, one after another, and checks each answer."""

    request: LoadRequest
    checkers: list[Checker]
    timeout_s: float
    wait_time: Any = constant(0)
    _client: Client | None = None

    @task
    def predict(self) -> None:
        bodies = self.request.all_bodies
        (which,) = random.choices(range(len(bodies)), [body.weight for body in bodies])
        begun = time.perf_counter()
        result = self._send(which, lambda: time.perf_counter() - begun)
        fired: Any = self.environment.events.request
        fired.fire(
            request_type="POST",
            name=self.request.path,
            response_time=(time.perf_counter() - begun) * 1000,
            response_length=result.size,
            exception=CatchResponseError(result.failure) if result.failure else None,
            context={EVENTS: result.events},
        )

    def _send(self, which: int, clock: Callable[[], float]) -> RequestResult:
        try:
            if self._client is None:
                # TorchServe does not know `//predictions`.
                url = f"{(self.host or '').rstrip('/')}{self.request.path}"
                self._client = Client(self.request.model_copy(update={"url": url}))
        except OSError:
            return RequestResult(BROKEN, 0, None)
        return send_and_check(self._client, which, self.checkers[which], self.timeout_s, clock)


hooks: Any = events
hooks.init_command_line_parser.add_listener(add_options)
hooks.init.add_listener(prepare)
hooks.test_start.add_listener(set_pace)
