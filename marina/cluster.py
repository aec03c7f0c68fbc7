"""`manifests`, `verify`, `deploy`, `rollback`, `status`, `delete`: everything about the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from marina.arguments import DEFAULT_SPEC, add_out_option, add_verb, print_json, print_result, read_spec
from marina.config.duration import duration_s
from marina.config.errors import InputError
from marina.config.progress import Progress
from marina.terminal import commands_text, is_name, localised, place_options

if TYPE_CHECKING:
    from marina.config.spec import Spec
    from marina.k8s.cluster import Cluster
    from marina.k8s.manifests import Plan
    from marina.k8s.rollout import Gate

_GATE_HINT = "kubernetes: {rollout: {gate: {minutes: 30}}}"

# The engines that replace the pods of a version by those of the next one, and ask Marina's judge.
_ENGINES = ("argo-rollouts", "flagger")


def add_verbs(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        manifests,
        "write Kubernetes manifests, as files, as a Helm chart, or for KServe, Argo Rollouts or Flagger",
        "marina manifests",
        "marina manifests my/spec.yaml --format helm",
        "marina manifests my/spec.yaml --format argo-rollouts",
        "marina manifests my/spec.yaml --check deploy/digits",
    )
    _manifests_options(parser)
    parser = add_verb(
        verbs,
        verify,
        "check a spec's manifests, without a cluster",
        "marina verify",
        "marina verify my/spec.yaml --kubernetes 1.34",
        "marina verify my/spec.yaml --json",
        "marina verify --format flagger",
        "marina verify --explain pdb-blocks-drain",
    )
    _verify_options(parser)
    parser = add_verb(
        verbs,
        deploy,
        "apply the manifests to a cluster and wait until the pods serve, or say why they do not and go back",
        "marina deploy --dry-run",
        "marina deploy my/spec.yaml --context production",
    )
    _deploy_options(parser)
    _add_verbs_of_a_release(verbs)


def _add_verbs_of_a_release(verbs: Any) -> None:
    """Those that take the name of a release as well as a spec."""
    parser = add_verb(
        verbs,
        rollback,
        "go back to the revision that ran before, or to another one that is kept",
        "marina rollback my/spec.yaml",
        "marina rollback my/spec.yaml --to 3",
        "marina rollback mine -n shop",
        spec=False,
    )
    _rollback_options(parser)
    parser = add_verb(
        verbs,
        status,
        "show what is deployed, and whether it is healthy",
        "marina status my/spec.yaml",
        "marina status my/spec.yaml --json",
        "marina status mine -n shop",
        spec=False,
        progress=False,
    )
    _named_options(parser)
    parser = add_verb(
        verbs,
        delete,
        "delete what `deploy` applied, and nothing else",
        "marina delete my/spec.yaml",
        "marina delete mine -n shop",
        spec=False,
    )
    _named_options(parser)


def _moved(plan: Plan) -> Iterator[str]:
    """Sentences about the sources of the package that may be another version by now."""
    if plan.package is None or not plan.package.record.pins:
        return iter(())
    from marina.archiver.fetching import moved_sources

    return moved_sources(plan.package.record.pins)


def manifests(options: argparse.Namespace) -> int:
    from marina.k8s.manifests import check_evidence, make_plan, next_steps, summary_text
    from marina.k8s.platforms import diff_folder, plan_for, write_format

    spec = read_spec(options)
    out = options.out / spec.name
    plan, progress = make_plan(spec, out), Progress(quiet=options.quiet)
    check_evidence(spec, plan.evidence, options.accept)
    if options.check:
        for sentence in _moved(plan):
            progress.say(f"warning: {sentence}")
        differing = diff_folder(plan_for(plan, out, options.format), options.format, options.check, progress)
        if options.json:
            print_json([{"file": file, "diff": diff} for file, diff in differing.items()])
        elif differing:
            print("\n".join(differing.values()))
            command = localised(f"marina manifests {options.spec} --format {options.format}", options)
            count = "1 file differs" if len(differing) == 1 else f"{len(differing)} files differ"
            print(f"{count}: {command}")
        else:
            print(f"{options.check}: the same as rendered from the spec")
        return 1 if differing else 0
    written = write_format(plan, out, options.format, progress)
    if options.json:
        print_json(written.to_data())
        return 0
    for note in written.notes:
        progress.say(localised(f"note: {note.text}\n  {note.hint}", options))
    print(summary_text(written, options.format))
    print(commands_text(next_steps(written, spec, options.format), options))
    return 0


def verify(options: argparse.Namespace) -> int:
    from marina.k8s.verify import explain_rule, verify_spec

    if options.explain:
        rule = explain_rule(options.explain)
        shown = {name: getattr(rule, name) for name in ("id", "level", "what", "why", "fix")}
        print_result(options, shown, "{id} ({level})\n  {what}\n  {why}\n  hint: {fix}".format_map(shown))
        return 0
    spec, progress = read_spec(options), Progress(quiet=options.quiet)
    folder, accepted = options.out / spec.name, options.accept
    how = {"live": options.live, "accepted": accepted, "output_format": options.format}
    verified = verify_spec(spec, folder, options.kubernetes, progress, **how)
    for note in verified.notes:
        progress.say(f"note: {note}")
    print_result(options, verified.to_data(), verified.to_text())
    return 1 if verified.errors else 0


def deploy(options: argparse.Namespace) -> int:
    from marina.k8s import rollout
    from marina.k8s.cluster import connect

    spec = read_spec(options)
    out = options.out / spec.name
    typed = " ".join([quote(str(options.spec)), *place_options("deploy", options)])
    cluster = connect(options.context, options.kubeconfig)
    placement = rollout.Placement(cluster, spec.name, spec.kubernetes.namespace, typed)
    how = rollout.RolloutOptions(
        timeout_s=options.timeout,
        force=options.force_conflicts,
        go_back=not options.no_rollback,
        dry_run=options.dry_run,
        accepted=options.accept,
        again=options.again,
    )
    release, progress = rollout.make_release(spec, out, options.accept), Progress(quiet=options.quiet)
    gate = None if options.no_gate else _gate(spec, options, cluster, progress)
    return _print_record(options, rollout.deploy(placement, release, how, progress, out / "rollout.json", gate))


def _gate(spec: Spec, options: argparse.Namespace, cluster: Cluster, progress: Progress) -> Gate | None:
    """What a new version must pass before it replaces the old one; None if the spec has no gate."""
    from marina.config.record import read_package
    from marina.k8s.rollout import CanaryRequest, Gate
    from marina.loadtest.comparing import inputs_of
    from marina.loadtest.gating import LiveGate, LiveLimits
    from marina.loadtest.judging import objective_of
    from marina.loadtest.sending import packaged_request

    gate, folder = spec.kubernetes.rollout.gate, options.out / spec.name
    if gate is None:
        if options.gate_load:
            raise InputError(f"{spec.file}: `--gate-load`: there is no gate", hint=_GATE_HINT)
        return None
    limits = LiveLimits(
        error_rate=objective_of(spec).error_rate, regression=gate.regression, min_requests=gate.min_requests
    )
    inputs, load = {}, None
    if (folder / "model.mar").is_file():
        request = packaged_request(read_package(folder), folder, "http://pod")
        inputs = {
            name: CanaryRequest(spec.url_name, body.body, body.content_type, None)
            for name, body in inputs_of(request, spec)
        }
    if options.gate_load:
        from marina.in_cluster import GateLoad

        seconds = 60 * gate.minutes
        load = GateLoad(spec, folder, options.gate_load, seconds, cluster, progress).sending
    return Gate(LiveGate(limits, gate.minutes), inputs, gate.agreement, load)


def rollback(options: argparse.Namespace) -> int:
    from marina.k8s import rollout

    placement, progress = _placement(options), Progress(quiet=options.quiet)
    how = rollout.RolloutOptions(timeout_s=options.timeout, force=options.force_conflicts)
    file = _record_file(options, placement)
    return _print_record(options, rollout.rollback(placement, how, progress, file, to=options.to))


def delete(options: argparse.Namespace) -> int:
    from marina.k8s import rollout

    placement, progress = _placement(options), Progress(quiet=options.quiet)
    return _print_record(options, rollout.delete(placement, progress, _record_file(options, placement)))


def status(options: argparse.Namespace) -> int:
    from marina.k8s import rollout

    placement = _placement(options)
    return _print_record(options, rollout.read_status(placement, options.out / placement.name))


def _placement(options: argparse.Namespace) -> Any:
    """The cluster, name and namespace of a deployment; other fields of the spec may be wrong, and the build folder
    missing."""
    from marina.config.load import load_name
    from marina.k8s.cluster import connect
    from marina.k8s.rollout import Placement

    typed = str(options.spec)
    if is_name(options):
        name, namespace = typed, options.namespace
    else:
        name, namespace = load_name(options.spec)
    namespace = options.namespace or namespace
    words = [quote(typed), *([f"-n {namespace}"] if options.namespace else []), *place_options("status", options)]
    return Placement(connect(options.context, options.kubeconfig), name, namespace, " ".join(words))


def _record_file(options: argparse.Namespace, placement: Any) -> Path | None:
    """The file for the record, in the build folder; None if there is no such folder."""
    folder: Path = options.out / placement.name
    return folder / "rollout.json" if folder.is_dir() else None


def _print_record(options: argparse.Namespace, record: Any) -> int:
    print_result(options, record.to_data(), localised(record.to_text(), options))
    return int(record.exit_code)


def _cluster_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of all verbs that talk to a cluster."""
    add = add_out_option(parser).add_argument
    add("--context", metavar="C", help="context of the kubeconfig (default: the current one)")
    add("--kubeconfig", metavar="FILE", type=Path, help="kubeconfig (default: $KUBECONFIG, or ~/.kube/config)")
    return parser


def _named_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of verbs that need only a name, so that they work even if the spec is broken or gone."""
    add = _cluster_options(parser).add_argument
    text = f"a spec, or with -n the name of a deployed service (default: {DEFAULT_SPEC} in this folder)"
    add("spec", metavar="SPEC|NAME", type=Path, nargs="?", default=DEFAULT_SPEC, help=text)
    add("-n", "--namespace", metavar="NS", help="namespace in which it is deployed (default: the spec's)")
    return parser


def _accept_option(parser: argparse.ArgumentParser) -> None:
    text = "accept evidence that was measured with other cores or on another processor; may be repeated"
    ids = ("evidence-cores", "evidence-processor")
    parser.add_argument("--accept", choices=ids, action="append", default=[], help=text)


def _manifests_options(parser: argparse.ArgumentParser) -> None:
    add = add_out_option(parser).add_argument
    text = "several files, a single file, a Helm chart, or what KServe, Argo Rollouts or Flagger take (default: files)"
    add("--format", choices=("files", "single", "helm", "kserve", *_ENGINES), default="files", help=text)
    text = "write nothing; print how the files in DIR differ from the rendered ones, and exit with 1 if they do"
    add("--check", metavar="DIR", type=Path, help=text)
    _accept_option(parser)


def _verify_options(parser: argparse.ArgumentParser) -> None:
    add = add_out_option(parser).add_argument
    _accept_option(parser)
    text = "check the manifests of this format (default: those that `marina deploy` applies)"
    add("--format", choices=("files", *_ENGINES), default="files", help=text)
    text = "check for this Kubernetes version, such as 1.34; may be repeated (default: all supported versions)"
    add("--kubernetes", metavar="V", action="append", default=[], help=text)
    text = "also check that a running server exports every metric that is used; URL of its pages, usually port 8090"
    add("--live", metavar="URL", help=text)
    add("--explain", metavar="RULE", help="explain one rule, and stop")


def _rollout_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add = parser.add_argument
    text = "how long the rollout may take (default: no limit as long as it makes progress)"
    add("--timeout", metavar="TIME", type=_time_limit_s, help=text)
    add("--force-conflicts", action="store_true", help="take over fields that another field manager owns")
    return parser


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0 < (rate := float(text)) < inf:
            return rate
    raise argparse.ArgumentTypeError(f"got `{text}`, allowed: a number above 0")


def _time_limit_s(text: str) -> float:
    """One that is over at once would fail every rollout."""
    if (limit_s := duration_s(text)) >= 1:
        return limit_s
    raise argparse.ArgumentTypeError(f"got `{text}`, allowed: 1 second or more")


def _deploy_options(parser: argparse.ArgumentParser) -> None:
    add = _rollout_options(_cluster_options(parser)).add_argument
    add("--dry-run", action="store_true", help="change nothing; ask the API server what would change, and print it")
    add("--no-rollback", action="store_true", help="if it fails, leave everything as it is for you to look at")
    text = "send R requests/s from pods in the cluster to each pod while the gate stands, where too few come"
    add("--gate-load", metavar="R", type=_rate, help=text)
    add("--no-gate", action="store_true", help="replace all pods at once, whatever the spec's `rollout.gate` says")
    text = "deploy a package that a gate refused, or that was rolled back"
    add("--again", action="store_true", help=text)
    text = "deploy although something is missing; the error shows the ID"
    add("--accept", metavar="ID", action="append", default=[], help=text)


def _rollback_options(parser: argparse.ArgumentParser) -> None:
    text = "number of the revision to go back to (default: the one that ran before)"
    _rollout_options(_named_options(parser)).add_argument("--to", metavar="N", type=int, help=text)
