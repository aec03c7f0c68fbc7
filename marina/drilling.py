"""`drill`: breaks the deployed service on purpose, under load, and judges what its clients saw."""

import argparse
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from marina.arguments import INTERRUPTED, add_verb, print_result, read_spec, stage_options
from marina.config.duration import duration_s
from marina.config.errors import ClusterError, InputError
from marina.config.progress import Progress
from marina.measuring import add_load_options, server_options

KINDS = ("evict", "kill", "drain", "shutdown", "rollout", "zone")
# Without a measured cold start.
_UNMEASURED_START_S, _ROOM_S = 60.0, 30.0


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        drill,
        "break the deployed service on purpose, under load, and say what clients saw: PASS, FAIL or INVALID",
        "marina drill evict",
        "marina drill my/spec.yaml shutdown --yes-break-it",
        "marina drill my/spec.yaml drain --url http://shop.example.org --yes-break-it",
    )
    text = (
        "evict: a pod, by the Eviction API; kill: its process; shutdown: SIGTERM as a node that shuts down sends it; "
        "rollout: restart all pods; drain: a node; zone: all nodes of a zone"
    )
    added.add_argument("kind", metavar="KIND", choices=KINDS, help=text)
    add_load_options(added)
    add = added.add_argument
    add("--yes-break-it", action="store_true", help="do it; without this, only say what would be done")
    add("--on", metavar="NAME", help="the pod, node or zone to break (default: the first pod, its node or its zone)")
    add("--url", metavar="U", help="send the load from here to this address (default: from a pod, to the Service)")
    text = "requests/s to send (default: `slo.throughput_rps` for each pod but one)"
    add("--rate", metavar="R", type=float, help=text)
    text = "load before anything is broken (default: 5)"
    add("--before", dest="before_s", metavar="TIME", type=duration_s, help=text)
    text = "time until there must be enough pods again (default: the grace period, two cold starts and 30 s)"
    add("--within", dest="within_s", metavar="TIME", type=duration_s, help=text)
    add("--processes", metavar="P", type=int, help="number of processes that send the load (default: 1)")
    add("--context", metavar="C", help="context of the kubeconfig (default: the current one)")
    add("--kubeconfig", metavar="FILE", type=Path, help="kubeconfig (default: $KUBECONFIG, or ~/.kube/config)")
    text = "image of the sending pods (default: what `marina image --target loadtest` made)"
    add("--image", metavar="REF", help=text)


def drill(options: argparse.Namespace) -> int:
    from marina import in_cluster
    from marina.k8s import drilling
    from marina.k8s.cluster import connect
    from marina.k8s.manifests import load_image, make_plan
    from marina.loadtest.drilling import DrillOptions, drill_text, write_drill
    from marina.loadtest.running import measuring_into

    spec, how, progress = read_spec(options), stage_options(DrillOptions, options), Progress(quiet=options.quiet)
    out, where = options.out / spec.name, replace(server_options(options, spec.name), any_package=True)
    plan, cluster = make_plan(spec, out), connect(options.context, options.kubeconfig)
    # Who may not see nodes has closed none.
    with suppress(ClusterError):
        for node in drilling.end_leftover_cordons(cluster, f"{plan.namespace}/{plan.name}"):
            progress.say(f"note: node {node} was still cordoned by a drill that was killed; it is uncordoned")
    planned = drilling.plan_drill(cluster, plan.namespace, plan.name, options.kind, options.on)
    sentences = tuple(planned.sentences())
    if not options.yes_break_it:
        typed = (
            f"marina drill {options.spec} {options.kind}{f' --on {options.on}' if options.on else ''} --yes-break-it"
        )
        raise InputError("\n".join(["`--yes-break-it`: missing, so nothing was done", *sentences]), hint=typed)
    drilling.check_drill_permissions(cluster, planned)
    for sentence in sentences:
        progress.say(sentence)
    image = options.image or load_image(out, spec)
    remote = None if options.url else in_cluster.target_of(plan, image, options, service=plan.name, one_pod=False)
    with measuring_into(out):
        breakage = drilling.Breakage(cluster, planned, progress.say)
        with drilling.cordoned(
            cluster, planned.nodes, planned.release, kubeconfig=options.kubeconfig, say=progress.say
        ):
            record = _carry_out(plan, how, replace(where, remote=remote), breakage, quiet=options.quiet)
        page = write_drill(record, out)
    print_result(options, record.to_data(), drill_text(record), f"report {page}")
    return INTERRUPTED if {reason.id for reason in record.reasons} == {"interrupted"} else record.exit_code


def _carry_out(plan: Any, how: Any, where: Any, breakage: Any, *, quiet: bool) -> Any:
    """Loads the service, breaks it meanwhile, and judges."""
    from marina.config.units import utc_now
    from marina.loadtest.drilling import Broken, LoadedDrill, PodsAt, judge_drill
    from marina.loadtest.judging import client_timeout_s, objective_of
    from marina.loadtest.running import open_session, stated_rate
    from marina.loadtest.sending import running_generator

    spec, planned, at = plan.spec, breakage.plan, utc_now()
    objective = objective_of(spec)
    start_s = plan.cold_start_s or _UNMEASURED_START_S
    within_s = how.within_s or math.ceil(plan.grace_period_s + 2 * start_s + _ROOM_S)
    # What is sent until there are enough pods has ended once a client would have given up on it.
    after_s = client_timeout_s(objective, how.timeout_s)
    rate = how.rate or max(1, planned.wanted - 1) * stated_rate(None, spec, objective, f"marina drill {spec.file}")
    schedule = how.schedule(rate, within_s, after_s)
    with running_generator() as local, open_session(spec, where, objective, how, quiet=quiet) as session:
        conductor = _Conductor(where.remote or local, breakage, how.break_at_s, within_s, after_s)
        ours = {"where": replace(where, remote=conductor)} if where.remote else {"generator": conductor}
        # A kept connection stays where it is; one of its own goes wherever the cluster leads it now.
        request = session.request.model_copy(update={"fresh_every": 2})
        measured = replace(session, request=request, **ours).measure(schedule, f"drill {planned.kind}")
        machine = session.machine
    pods = tuple(
        PodsAt(at_s=conductor.at_s(reading.at) or 0.0, serving=reading.serving, wanted=reading.wanted)
        for reading in breakage.readings
    )
    broken = Broken(
        kind=planned.kind,
        what=tuple(planned.sentences()),
        begun_s=conductor.at_s(breakage.begun),
        enough_s=conductor.at_s(breakage.enough),
        notice_s=spec.serving.drain_propagation_s if planned.kind == "shutdown" else None,
        within_s=within_s,
        refused=breakage.refused,
        error=breakage.error,
        pods=tuple(reading for reading in pods if reading.at_s >= 0),
    )
    interrupted = measured.interrupted and not conductor.over.is_set()
    return judge_drill(
        spec, objective, broken, LoadedDrill(measured, schedule, session.target.url, machine, at, interrupted)
    )


class _Conductor:
    """Sends the load by a generator, on this machine or in the cluster, and breaks the service meanwhile."""

    def __init__(self, generator: Any, breakage: Any, break_at_s: float, within_s: float, after_s: float) -> None:
        self._generator, self._breakage = generator, breakage
        self._break_at_s, self._within_s, self._after_s = break_at_s, within_s, after_s
        self.over = threading.Event()
        """Set once nothing more is to be seen."""
        self._done = threading.Event()
        self._start = math.inf
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate(self, plan: Any, on_second: Any) -> Any:
        thread = threading.Thread(target=self._break, name="breakage")
        thread.start()

        def follow(number: int, second: Any, beats: Sequence[Any]) -> None:
            # Of a log that is read now and then, the line that came soonest says best when the load began.
            self._start = min(self._start, time.monotonic() - number)
            on_second(number, second, beats)
            if number >= self._break_at_s:
                self._breakage.begin.set()
            if self.over.is_set() and not self._ended and not hasattr(self._generator, "served_sha256"):
                self._ended = True
                # What Ctrl-C does; the pods of a cluster send for as long as was planned.
                raise KeyboardInterrupt

        try:
            return self._generator.generate(plan, follow)
        finally:
            self._breakage.stop.set()
            self._done.set()
            thread.join()

    def at_s(self, moment: float | None) -> float | None:
        """A moment of `time.monotonic`, in seconds from the start of the load."""
        return None if moment is None or math.isinf(self._start) else moment - self._start

    def _break(self) -> None:
        self._breakage.run(self._within_s)
        if self._breakage.begun is not None and not self._breakage.error:
            self._done.wait(self._after_s)
        self.over.set()
