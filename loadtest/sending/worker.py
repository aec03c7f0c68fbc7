"""One generator process: `python -m loadtest.sending.worker`, started by `generator` or, on other machines, by `crew`.

It reads a `Plan` as one line, says `ready`, reads the start time as a second line, says a line each second and the
`Measurement` as the last one. When its input ends before that, the one who asked is gone or wants it to stop.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from typing import Any

import gevent
from gevent.fileobject import FileObjectPosix

from loadtest.measuring import Beat, Second
from loadtest.sending.engine import OpenLoop
from loadtest.sending.plan import LoadPlan


def main() -> None:
    """Runs one plan, told on stdin."""
    # Ctrl-C reaches the whole terminal's group; the parent decides, by closing our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(FileObjectPosix(sys.stdin.buffer.fileno(), "rb", closefd=False), sys.stdout)


def work(orders: Any, answers: Any) -> None:
    """Runs the plan that comes in `orders`; what there is to say goes to `answers`."""

    def say(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    def say_beat(beat: Beat, second: Second) -> None:
        say({"beat": beat.model_dump(), "second": second.model_dump(mode="json")})

    _go_first()
    engine = OpenLoop(LoadPlan.model_validate_json(orders.readline()), say_beat)
    say({"ready": True})
    line = orders.readline()
    if not line:
        return
    start = json.loads(line)
    # From another machine the start comes as a distance, because clocks differ.
    moment = start["start"] if "start" in start else time.perf_counter() + start["start_in"]
    gevent.spawn(_stop_at_end, orders, engine)
    # What exists now lives as long as the run; the collector need not walk it while requests are timed.
    gc.collect()
    gc.freeze()
    say({"measurement": engine.run(moment).model_dump(mode="json")})


def _go_first() -> None:
    """Arrivals must not wait for a core that the server or anything else is using.

    Only a real-time class helps on a full machine (measured: p99 of the lag 10 ms without, 1.2 ms with it); where that
    is not allowed the verdict says so, as late arrivals.
    """
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _stop_at_end(orders: Any, engine: OpenLoop) -> None:
    orders.read()
    engine.stop()


if __name__ == "__main__":
    main()
