"""`judge`: decides by live traffic whether a new version may replace the old one, for pipelines and other engines."""

from __future__ import annotations

import argparse
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from marina.arguments import add_verb, print_result, read_spec
from marina.config.errors import InputError
from marina.config.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import HTTPServer

    from marina.loadtest.gating import LiveGate, VerdictPage


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        judge,
        "compare what two versions answer on live traffic: PASS, FAIL or INVALID",
        "marina judge --old http://10.0.0.7:8090 --new http://10.0.0.8:8090",
        "marina judge my/spec.yaml --old http://10.0.0.7:8090 --new http://10.0.0.8:8090 --minutes 30 --port 9000",
        "marina judge --follow --port 9000 --old http://mine-old-pages:8090 --new http://mine-new-pages:8090",
    )
    add = added.add_argument
    text = "address of the supervisor's pages of a server with the old version; again for each further one"
    add("--old", metavar="URL", action="append", default=[], help=text)
    add("--new", metavar="URL", action="append", default=[], help="the same of the new version")
    text = "how long to compare (default: the spec's `kubernetes.rollout.gate`, or 10)"
    add("--minutes", metavar="M", type=float, help=text)
    text = "how much slower it may be, as a share (default: the spec's `kubernetes.rollout.gate`, or 0.2)"
    add("--regression", metavar="R", type=float, help=text)
    text = "how many requests each must have answered (default: the spec's `kubernetes.rollout.gate`, or 0)"
    add("--min-requests", metavar="N", type=int, help=text)
    text = "serve the verdict as JSON on this port until stopped: `/` for Argo Rollouts, webhooks for Flagger"
    add("--port", metavar="P", type=int, help=text)
    text = "stay, and judge each new version that comes: pods behind --new that are not behind --old; needs --port"
    add("--follow", action="store_true", help=text)
    add("--host", metavar="H", default="127.0.0.1", help="address to serve it on (default: 127.0.0.1)")


def judge(options: argparse.Namespace) -> int:
    from marina.config.sections import DEFAULT_GATE
    from marina.loadtest.gating import LiveGate, LiveLimits, VerdictPage, stand_between
    from marina.loadtest.judging import objective_of

    spec, progress = read_spec(options), Progress(quiet=options.quiet)
    _check(options)
    given = spec.kubernetes.rollout.gate or DEFAULT_GATE
    minutes, regression, fewest = (
        value if (value := getattr(options, name)) is not None else getattr(given, name)
        for name in ("minutes", "regression", "min_requests")
    )
    limits = LiveLimits(error_rate=objective_of(spec).error_rate, regression=regression, min_requests=fewest)
    page = VerdictPage()
    server = _serve(page, options)
    try:
        if options.follow:
            return _follow(options, page, lambda: LiveGate(limits, minutes), progress)
        page.verdict = stand_between(LiveGate(limits, minutes), options.old, options.new, progress.say)
        print_result(options, page.to_data(), page.to_data()["text"])
        if server:
            progress.say(f"the verdict stays at {_address(options)} until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    finally:
        if server:
            server.shutdown()
            server.server_close()
    return page.verdict.exit_code


def _check(options: argparse.Namespace) -> None:
    if not options.old or not options.new:
        raise InputError(
            f"`--{'new' if options.old else 'old'}`: missing: the address of a server",
            hint=f"marina judge {options.spec} --old http://10.0.0.7:8090 --new http://10.0.0.8:8090",
        )
    for url in (*options.old, *options.new):
        if not url.startswith(("http://", "https://")):
            raise InputError(f"`{url}`: no address of a server, allowed: http://HOST:PORT")
    if options.follow and not options.port:
        raise InputError("`--follow`: only with `--port`, where its verdicts are read", hint="--port 9000")


def _serve(page: VerdictPage, options: argparse.Namespace) -> HTTPServer | None:
    if not options.port:
        return None
    try:
        return page.serve(options.host, options.port)
    except (OSError, OverflowError) as err:
        raise InputError(f"`--port`: {options.host}, port {options.port}: {err}", hint="--host :: --port 9000") from err


def _address(options: argparse.Namespace) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{options.port}/"


def _follow(options: argparse.Namespace, page: VerdictPage, make: Callable[[], LiveGate], progress: Progress) -> int:
    """Judges until a signal says to stop."""
    from marina.config.machine import stops_as_interrupt
    from marina.loadtest.gating import Follower

    progress.say(f"verdicts are at {_address(options)} until Ctrl-C")
    with suppress(KeyboardInterrupt), stops_as_interrupt(signal.SIGINT):
        Follower(make, options.old, options.new, page).follow(threading.Event(), progress.say)
    return 0
