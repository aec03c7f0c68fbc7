"""`manifests`, `verify`, `deploy`, `rollback`, `status`, `delete`: what a cluster is given, and what it makes of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import print_json, verb, with_build


def add_verbs(verbs: Any) -> None:
    """Their options."""
    added = with_build(verb(verbs, manifests, "Kubernetes manifests, as files for kubectl and kustomize",
                            "marina manifests", "marina manifests my/spec.yaml --format single"))  # fmt: skip
    added.add_argument("--format", choices=("files", "single"), default="files",
                       help="a file for each concern, or one for all (default: files)")  # fmt: skip
    _verify_options(with_build(verb(verbs, verify, "whether manifests will work, without a cluster", "marina verify",
                                    "marina verify my/spec.yaml --kubernetes 1.34", "marina verify --dir DIR --json",
                                    "marina verify --explain pdb-blocks-drain")))  # fmt: skip
    _deploy_options(verb(verbs, deploy, "apply to a cluster, wait until it serves, or say why not and go back",
                         "marina deploy --dry-run", "marina deploy my/spec.yaml --context production"))  # fmt: skip
    _rollback_options(verb(verbs, rollback, "bring back the revision that ran before",
                           "marina rollback my/spec.yaml", "marina rollback my/spec.yaml --to 3"))  # fmt: skip
    _cluster_options(verb(verbs, status, "what is deployed, and how it is",
                          "marina status my/spec.yaml", "marina status my/spec.yaml --json"))  # fmt: skip
    _delete_options(verb(verbs, delete, "take out of a cluster what `deploy` applied, and nothing else",
                         "marina delete my/spec.yaml", "marina delete my/spec.yaml --namespace"))  # fmt: skip


def manifests(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from config.progress import Progress
    from k8s.manifests import make_plan, summarise, write_manifests

    # The build folder has all that is needed: where manifests are made, the model's sources need not be.
    spec = load_spec(options.spec, files=False)
    out = options.out / spec.name
    written = write_manifests(make_plan(spec, out), out, options.format)
    if options.json:
        print_json(written.to_data())
        return 0
    progress = Progress(quiet=options.quiet)
    for note in written.notes:
        progress.say(f"note: {note.text}\n  {note.hint}")
    print(summarise(written, spec))
    return 0


def verify(options: argparse.Namespace) -> int:
    from config.errors import InputError
    from config.load import load_spec
    from config.progress import Progress
    from k8s.verify import explain_rule, verify_folder, verify_spec

    if options.explain:
        rule = explain_rule(options.explain)
        print(f"{rule.id} ({rule.level})\n  {rule.what}\n  {rule.why}\n  hint: {rule.fix}")
        return 0
    if options.dir and options.live:
        raise InputError("`--live`: compares with a spec, and `--dir` has none", hint="marina verify SPEC --live URL")
    progress = Progress(quiet=options.quiet)
    if options.dir:
        verified = verify_folder(options.dir, options.kubernetes, progress)
    else:
        spec = load_spec(options.spec, files=False)
        verified = verify_spec(spec, options.out / spec.name, options.kubernetes, progress, live=options.live)
    for note in verified.notes:
        progress.say(f"note: {note}")
    if options.json:
        print_json(verified.to_data())
    else:
        print(verified.to_text())
    return 1 if verified.errors else 0


def deploy(options: argparse.Namespace) -> int:
    from k8s.rollout.deploy import deploy as run

    return _told(options, run(_steps(options, dry_run=options.dry_run, go_back=not options.no_rollback)))


def rollback(options: argparse.Namespace) -> int:
    from k8s.rollout.deploy import rollback as run

    return _told(options, run(_steps(options), options.to))


def delete(options: argparse.Namespace) -> int:
    from k8s.rollout.delete import delete as run

    return _told(options, run(_steps(options), namespace=options.namespace))


def status(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from k8s.rollout.cluster import connect
    from k8s.rollout.status import look, summary

    spec = load_spec(options.spec, files=False)
    cluster = connect(options.context, options.kubeconfig)
    found = look(cluster, spec.kubernetes.namespace, spec.name, options.out / spec.name)
    if options.json:
        print_json(found.to_data())
    else:
        print(summary(found))
    return found.exit_code


def _steps(options: argparse.Namespace, **more: Any) -> Any:
    """The spec's release and the cluster that was named."""
    from config.load import load_spec
    from config.progress import Progress
    from k8s.rollout.cluster import connect
    from k8s.rollout.release import How, make_release
    from k8s.rollout.steps import Steps

    spec = load_spec(options.spec, files=False)
    out = options.out / spec.name
    asked = vars(options)
    how = How(
        spec=str(options.spec),
        timeout_s=asked.get("timeout"),
        force=asked.get("force_conflicts", False),
        accepted=asked.get("accept", ()),
        **more,
    )
    cluster = connect(options.context, options.kubeconfig)
    return Steps(cluster, make_release(spec, out), how, Progress(quiet=options.quiet), out / "rollout.json")


def _told(options: argparse.Namespace, record: Any) -> int:
    from k8s.rollout.record import summary

    if options.json:
        print_json(record.to_data())
    else:
        print(summary(record))
    return int(record.exit_code)


def _cluster_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What all verbs have that talk to a cluster. Nothing here names a namespace: the spec does."""
    add = with_build(parser).add_argument
    add("--context", metavar="C", help="of the kubeconfig (default: the current one)")
    add("--kubeconfig", metavar="FILE", type=Path, help="default: $KUBECONFIG, or ~/.kube/config")
    return parser


def _verify_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dir", metavar="DIR", type=Path, help="look at the YAML and JSON files of a folder instead of at SPEC's")
    add("--kubernetes", metavar="V", action="append", default=[],
        help="a minor version such as 1.34, as often as you like (default: all that are supported)")  # fmt: skip
    add("--live", metavar="URL", help="also look for every metric that is named on a running server's page, port 8090")
    add("--explain", metavar="RULE", help="say what a rule is about, and why")


def _rolling_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add = _cluster_options(parser).add_argument
    text = "seconds the rollout may take (default: as long as it makes progress)"
    add("--timeout", metavar="S", type=float, help=text)
    add("--force-conflicts", action="store_true", help="take over fields that others own")
    return parser


def _deploy_options(parser: argparse.ArgumentParser) -> None:
    add = _rolling_options(parser).add_argument
    add("--dry-run", action="store_true", help="say what would change, as the server sees it; change nothing")
    add("--no-rollback", action="store_true", help="leave a revision that failed as it is, to look at it")
    add("--accept", metavar="ID", action="append", default=[],
        help="deploy although this is missing: the id that the error names")  # fmt: skip


def _rollback_options(parser: argparse.ArgumentParser) -> None:
    text = "the revision (default: the one that ran before)"
    _rolling_options(parser).add_argument("--to", metavar="N", type=int, help=text)


def _delete_options(parser: argparse.ArgumentParser) -> None:
    text = "also delete the namespace, if this spec made it and nothing else is in it"
    _cluster_options(parser).add_argument("--namespace", action="store_true", help=text)
