"""From a running server to a verdict that can be trusted. Of our packages it imports only `config`.

Its rooms are measuring, scheduling, sending, judging, reporting, running, calibrating and comparing; each imports only
the rooms before it. Beside them, `locustfile` and `closed_loop` add a verdict to plain Locust.

Importing Locust patches the whole process, so load is always sent by separate processes, and no name that is imported
here imports Locust. Names are imported when they are first used, because those processes need only one of the eight
rooms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtest.calibrating import (
        CalibrateOptions,
        calibrate,
        evidence_text,
        settings_space,
        tune_settings,
        tuning_record,
        tuning_text,
    )
    from loadtest.comparing import CompareOptions, compare, compare_with_baseline, comparison_text
    from loadtest.judging import client_timeout_s, objective_of
    from loadtest.measuring import Machine, Measurement, PeakMemory, parse_reading, this_machine
    from loadtest.reporting import check_text, ms
    from loadtest.running import (
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
    from loadtest.sending import (
        LoadPlan,
        OnSecond,
        Server,
        packaged_request,
        parse_header,
        read_record_lines,
        read_second_line,
        with_samples,
    )

_ROOMS = ("measuring", "scheduling", "sending", "judging", "reporting", "running", "calibrating", "comparing")


def __getattr__(name: str) -> Any:
    # Python asks for names such as `__path__`, and these must not load all rooms.
    for room in () if name.startswith("_") else _ROOMS:
        if hasattr(face := import_module(f"loadtest.{room}"), name):
            return getattr(face, name)
    raise AttributeError(f"module `loadtest` has no attribute `{name}`")
