"""From a running server to a verdict that can be trusted. Of our packages it imports only `config`.

Its rooms are measuring, scheduling, sending, judging, reporting, running, calibrating and comparing; each imports only
the rooms before it. Beside them, `locustfile` and `closed_loop` add a verdict to plain Locust.

Importing Locust patches the whole process, so load is always sent by separate processes, and no name in `__all__`
imports Locust. Names are imported when they are first used, because those processes need only one of the eight rooms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marina.loadtest.calibrating import (
        CalibrateOptions,
        calibrate,
        evidence_text,
        tune_settings,
    )
    from marina.loadtest.comparing import CompareOptions, Comparison, compare, compare_with_baseline, comparison_text
    from marina.loadtest.judging import client_timeout_s, objective_of
    from marina.loadtest.measuring import Machine, Measurement, PeakMemory, parse_reading, this_machine
    from marina.loadtest.reporting import check_text, ms
    from marina.loadtest.running import (
        RemoteServer,
        RunOptions,
        ServerLimits,
        TargetOptions,
        find_package,
        measuring_into,
        next_step,
        run_load_test,
        started_server,
        verdict_text,
    )
    from marina.loadtest.sending import (
        LoadPlan,
        OnSecond,
        Server,
        packaged_request,
        parse_header,
        read_record_lines,
        read_second_line,
        with_samples,
    )

__all__ = [
    "CalibrateOptions",
    "CompareOptions",
    "Comparison",
    "LoadPlan",
    "Machine",
    "Measurement",
    "OnSecond",
    "PeakMemory",
    "RemoteServer",
    "RunOptions",
    "Server",
    "ServerLimits",
    "TargetOptions",
    "calibrate",
    "check_text",
    "client_timeout_s",
    "compare",
    "compare_with_baseline",
    "comparison_text",
    "evidence_text",
    "find_package",
    "measuring_into",
    "ms",
    "next_step",
    "objective_of",
    "packaged_request",
    "parse_header",
    "parse_reading",
    "read_record_lines",
    "read_second_line",
    "run_load_test",
    "started_server",
    "this_machine",
    "tune_settings",
    "verdict_text",
    "with_samples",
]
_ROOMS = ("measuring", "scheduling", "sending", "judging", "reporting", "running", "calibrating", "comparing")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            face = import_module(f"marina.loadtest.{room}")
            if name in face.__all__:
                return getattr(face, name)
    raise AttributeError(f"module `loadtest` has no attribute `{name}`")
