"""From a running server to a verdict that can be trusted. Imports only `config` of ours.

Its rooms, each of which imports only those before it: measuring, scheduling, sending, judging, reporting, running,
calibrating, comparing. Beside them `locustfile` and `closed_loop` make a verdict of plain Locust.

Importing Locust patches the whole process, so load is always sent by processes of their own, and nothing that is named
here imports it. A name is looked up when it is asked for: those processes need one room of eight.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtest.calibrating import Search, calibrate, evidence_text, retune, space_of, tuning_record, tuning_text
    from loadtest.comparing import Comparison, Pairing, compare, compare_with_baseline, comparison_text
    from loadtest.judging import client_timeout_s, objective_of
    from loadtest.measuring import Machine, Measurement, Memory, reading_of, this_machine
    from loadtest.reporting import check_text
    from loadtest.running import (
        Confined,
        Elsewhere,
        RunOptions,
        Where,
        find_package,
        next_step,
        run,
        started,
        verdict_text,
    )
    from loadtest.sending import (
        LoadPlan,
        OnSecond,
        Server,
        header_of,
        packaged_request,
        record_in,
        second_in,
        with_samples,
    )

__all__ = [
    "Comparison",
    "Confined",
    "Elsewhere",
    "LoadPlan",
    "Machine",
    "Measurement",
    "Memory",
    "OnSecond",
    "Pairing",
    "RunOptions",
    "Search",
    "Server",
    "Where",
    "calibrate",
    "check_text",
    "client_timeout_s",
    "compare",
    "compare_with_baseline",
    "comparison_text",
    "evidence_text",
    "find_package",
    "header_of",
    "next_step",
    "objective_of",
    "packaged_request",
    "reading_of",
    "record_in",
    "retune",
    "run",
    "second_in",
    "space_of",
    "started",
    "this_machine",
    "tuning_record",
    "tuning_text",
    "verdict_text",
    "with_samples",
]
_ROOMS = ("measuring", "scheduling", "sending", "judging", "reporting", "running", "calibrating", "comparing")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            face = import_module(f"loadtest.{room}")
            if name in face.__all__:
                return getattr(face, name)
    raise AttributeError(f"module `loadtest` has no attribute `{name}`")
