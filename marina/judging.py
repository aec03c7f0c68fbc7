"""`judge`: decides by live traffic whether a new version may replace the old one, for pipelines and other engines."""

import argparse
from contextlib import suppress
from typing import Any

from marina.arguments import add_verb, print_result, read_spec
from marina.config.errors import InputError
from marina.config.progress import Progress

_MINUTES, _REGRESSION = 10.0, 0.2


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        judge,
        "compare what two versions answer on live traffic: PASS, FAIL or INVALID",
        "marina judge --old http://10.0.0.7:8090 --new http://10.0.0.8:8090",
        "marina judge my/spec.yaml --old http://10.0.0.7:8090 --new http://10.0.0.8:8090 --minutes 30 --port 9000",
    )
    add = added.add_argument
    text = "address of the supervisor's pages of a server with the old version; again for each further one"
    add("--old", metavar="URL", action="append", default=[], help=text)
    add("--new", metavar="URL", action="append", default=[], help="the same of the new version")
    text = f"how long to compare (default: the spec's `kubernetes.rollout.gate`, or {_MINUTES:g})"
    add("--minutes", metavar="M", type=float, help=text)
    text = f"how much slower it may be, as a share (default: the spec's `kubernetes.rollout.gate`, or {_REGRESSION})"
    add("--regression", metavar="R", type=float, help=text)
    text = "how many requests each must have answered (default: the spec's `kubernetes.rollout.gate`, or 0)"
    add("--min-requests", metavar="N", type=int, help=text)
    text = "serve the verdict as JSON on this port until stopped: `/` for Argo Rollouts, webhooks for Flagger"
    add("--port", metavar="P", type=int, help=text)
    add("--host", metavar="H", default="127.0.0.1", help="address to serve it on (default: 127.0.0.1)")


def judge(options: argparse.Namespace) -> int:
    from marina.config.sections.kubernetes import Gate
    from marina.loadtest.gating import LiveGate, LiveLimits, VerdictPage, stand_between
    from marina.loadtest.judging import objective_of

    spec, progress = read_spec(options), Progress(quiet=options.quiet)
    if not options.old or not options.new:
        raise InputError(
            f"`--{'new' if options.old else 'old'}`: missing: the address of a server",
            hint=f"marina judge {options.spec} --old http://10.0.0.7:8090 --new http://10.0.0.8:8090",
        )
    for url in (*options.old, *options.new):
        if not url.startswith(("http://", "https://")):
            raise InputError(f"`{url}`: no address of a server, allowed: http://HOST:PORT")
    given = spec.kubernetes.rollout.gate or Gate(minutes=_MINUTES, regression=_REGRESSION)
    minutes, regression, fewest = (
        value if (value := getattr(options, name)) is not None else getattr(given, name)
        for name in ("minutes", "regression", "min_requests")
    )
    limits = LiveLimits(error_rate=objective_of(spec).error_rate, regression=regression, min_requests=fewest)
    gate, page = LiveGate(limits, minutes), VerdictPage()
    server = page.serve(options.host, options.port) if options.port else None
    try:
        page.verdict = stand_between(gate, options.old, options.new, progress.say)
        print_result(options, page.to_data(), page.to_data()["text"])
        if server:
            progress.say(f"the verdict stays at http://{options.host}:{options.port}/ until Ctrl-C")
            with suppress(KeyboardInterrupt):
                _wait_for_ever()
    finally:
        if server:
            server.shutdown()
            server.server_close()
    return page.verdict.exit_code


def _wait_for_ever() -> None:
    import threading

    threading.Event().wait()
