"""`manifests`, `verify`, `deploy`, `rollback`, `status`, `delete`: what a cluster is given, and what it makes of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import DEFAULT_SPEC, add_out_option, add_verb, print_json


def add_verbs(verbs: Any) -> None:
    """Their options."""
    examples: tuple[str, ...] = ("marina manifests", "marina manifests my/spec.yaml --format helm")
    examples += ("marina manifests my/spec.yaml --check deploy/digits",)
    text = "write Kubernetes manifests, as files, as a Helm chart or for KServe"
    added = add_out_option(add_verb(verbs, manifests, text, *examples))
    _manifests_options(added)
    _accept_option(added)

    examples = ("marina verify", "marina verify my/spec.yaml --kubernetes 1.34", "marina verify --dir manifests --json")
    examples += ("marina verify --explain pdb-blocks-drain",)
    _verify_options(add_out_option(add_verb(verbs, verify, "check manifests, without a cluster", *examples)))

    examples = ("marina deploy --dry-run", "marina deploy my/spec.yaml --context production")
    text = "apply the manifests to a cluster, wait until they serve, or say why not and go back"
    _deploy_options(add_verb(verbs, deploy, text, *examples))

    examples = ("marina rollback my/spec.yaml", "marina rollback my/spec.yaml --to 3", "marina rollback mine -n shop")
    text = "go back to the revision that ran before, or to another that is kept"
    _rollback_options(add_verb(verbs, rollback, text, *examples, spec=False))

    examples = ("marina status my/spec.yaml", "marina status my/spec.yaml --json", "marina status mine -n shop")
    _named_options(add_verb(verbs, status, "say what is deployed, and whether it is healthy", *examples, spec=False))

    examples = ("marina delete my/spec.yaml", "marina delete mine -n shop --with-namespace")
    _delete_options(add_verb(verbs, delete, "delete what `deploy` applied, and nothing else", *examples, spec=False))


def manifests(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from config.progress import Progress
    from k8s import check_machine, differences, make_plan, tell, write_form

    # The build folder has all that is needed: where manifests are made, the model's sources need not be.
    spec = load_spec(options.spec, files=False)
    out = options.out / spec.name
    plan, progress = make_plan(spec, out), Progress(quiet=options.quiet)
    check_machine(spec, plan.evidence, options.accept)
    if options.check:
        differing = differences(plan, out, options.format, options.check, progress)
        if options.json:
            print_json([difference.to_data() for difference in differing])
        else:
            again = f"marina manifests {options.spec} --format {options.format}"
            print("\n".join(difference.diff for difference in differing) or f"{options.check}: as the spec renders it")
            print(f"{len(differing)} files differ: {again}" if differing else "", end="\n" if differing else "")
        return 1 if differing else 0
    written = write_form(plan, out, options.format, progress)
    if options.json:
        print_json(written.to_data())
        return 0
    for note in written.notes:
        progress.say(f"note: {note.text}\n  {note.hint}")
    print(tell(written, spec, options.format))
    return 0


def verify(options: argparse.Namespace) -> int:
    from config.errors import InputError
    from config.load import load_spec
    from config.progress import Progress
    from k8s import explain_rule, verify_folder, verify_spec

    if options.explain:
        rule = explain_rule(options.explain)
        print(f"{rule.id} ({rule.level})\n  {rule.what}\n  {rule.why}\n  hint: {rule.fix}")
        return 0
    if options.dir and options.live:
        text = "`--live`: not together with `--dir`, which has no spec to compare with"
        raise InputError(text, hint="marina verify SPEC --live URL")
    progress = Progress(quiet=options.quiet)
    if options.dir:
        verified = verify_folder(options.dir, options.kubernetes, progress)
    else:
        spec = load_spec(options.spec, files=False)
        folder, accepted = options.out / spec.name, options.accept
        verified = verify_spec(spec, folder, options.kubernetes, progress, live=options.live, accepted=accepted)
    for note in verified.notes:
        progress.say(f"note: {note}")
    if options.json:
        print_json(verified.to_data())
    else:
        print(verified.to_text())
    return 1 if verified.errors else 0


def deploy(options: argparse.Namespace) -> int:
    import k8s
    from config.load import load_spec
    from config.progress import Progress

    spec = load_spec(options.spec, files=False)
    out = options.out / spec.name
    cluster = k8s.connect(options.context, options.kubeconfig)
    placement = k8s.Placement(cluster, spec.name, spec.kubernetes.namespace, str(options.spec))
    how = k8s.RolloutOptions(
        timeout_s=options.timeout,
        force=options.force_conflicts,
        go_back=not options.no_rollback,
        dry_run=options.dry_run,
        accepted=options.accept,
    )
    release, progress = k8s.make_release(spec, out, options.accept), Progress(quiet=options.quiet)
    return _printed(options, k8s.deploy(placement, release, how, progress, out / "rollout.json"))


def rollback(options: argparse.Namespace) -> int:
    import k8s
    from config.progress import Progress

    placement = _placement(options)
    how = k8s.RolloutOptions(timeout_s=options.timeout, force=options.force_conflicts)
    progress = Progress(quiet=options.quiet)
    return _printed(options, k8s.rollback(placement, how, progress, _record_file(options, placement), to=options.to))


def delete(options: argparse.Namespace) -> int:
    import k8s
    from config.progress import Progress

    placement, progress = _placement(options), Progress(quiet=options.quiet)
    record_file = _record_file(options, placement)
    return _printed(options, k8s.delete(placement, progress, record_file, with_namespace=options.with_namespace))


def status(options: argparse.Namespace) -> int:
    import k8s

    placement = _placement(options)
    return _printed(options, k8s.read_status(placement, options.out / placement.name))


def _placement(options: argparse.Namespace) -> Any:
    """What is deployed by a name and where; neither the rest of the spec nor the build folder need be right for it."""
    import k8s
    from config.load import load_name

    typed = str(options.spec)
    if options.namespace and not options.spec.is_file():
        name, namespace = typed, options.namespace
    else:
        name, namespace = load_name(options.spec)
    namespace = options.namespace or namespace
    typed += f" -n {namespace}" if options.namespace else ""
    return k8s.Placement(k8s.connect(options.context, options.kubeconfig), name, namespace, typed)


def _record_file(options: argparse.Namespace, placement: Any) -> Path | None:
    """Where the record goes: into the build folder, where there is one."""
    folder: Path = options.out / placement.name
    return folder / "rollout.json" if folder.is_dir() else None


def _printed(options: argparse.Namespace, record: Any) -> int:
    if options.json:
        print_json(record.to_data())
    else:
        print(record.to_text())
    return int(record.exit_code)


def _cluster_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What all verbs have that talk to a cluster."""
    add = add_out_option(parser).add_argument
    add("--context", metavar="C", help="context of the kubeconfig (default: the current one)")
    add("--kubeconfig", metavar="FILE", type=Path, help="kubeconfig (default: $KUBECONFIG, or ~/.kube/config)")
    return parser


def _named_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What the verbs have that need no more than a name: a spec that is broken or gone must not be in their way."""
    add = _cluster_options(parser).add_argument
    text = f"a spec, or with -n the name of what is deployed (default: {DEFAULT_SPEC})"
    add("spec", metavar="SPEC|NAME", type=Path, nargs="?", default=DEFAULT_SPEC, help=text)
    add("-n", "--namespace", metavar="NS", help="namespace in which it is deployed (default: the spec's)")
    return parser


def _accept_option(parser: argparse.ArgumentParser) -> None:
    text = "go on although the evidence was measured on another machine; the error names the ID"
    parser.add_argument("--accept", metavar="ID", action="append", default=[], help=text)


def _manifests_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "several files, a single one, a Helm chart, or a KServe InferenceService (default: files)"
    add("--format", choices=("files", "single", "helm", "kserve"), default="files", help=text)
    text = "write nothing; print how the files in DIR differ from what the spec renders, and exit with 1 if they do"
    add("--check", metavar="DIR", type=Path, help=text)


def _verify_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _accept_option(parser)
    add(
        "--dir",
        metavar="DIR",
        type=Path,
        help="check the YAML and JSON files of this folder instead of SPEC's manifests",
    )
    text = "a Kubernetes version such as 1.34; may be repeated (default: all that are supported)"
    add("--kubernetes", metavar="V", action="append", default=[], help=text)
    add(
        "--live",
        metavar="URL",
        help="also check that a running server, at port 8090, exports every metric that is used",
    )
    add("--explain", metavar="RULE", help="explain one rule, and stop")


def _rolling_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add = parser.add_argument
    text = "seconds that the rollout may take (default: no limit while it makes progress)"
    add("--timeout", metavar="S", type=float, help=text)
    add("--force-conflicts", action="store_true", help="take over fields that another field manager owns")
    return parser


def _deploy_options(parser: argparse.ArgumentParser) -> None:
    add = _rolling_options(_cluster_options(parser)).add_argument
    add("--dry-run", action="store_true", help="change nothing; ask the API server what would change, and print it")
    add("--no-rollback", action="store_true", help="if it fails, leave it as it is, so that you can look at it")
    text = "deploy although something is missing; the error names the ID"
    add("--accept", metavar="ID", action="append", default=[], help=text)


def _rollback_options(parser: argparse.ArgumentParser) -> None:
    text = "number of the revision (default: the one that ran before)"
    _rolling_options(_named_options(parser)).add_argument("--to", metavar="N", type=int, help=text)


def _delete_options(parser: argparse.ArgumentParser) -> None:
    text = "also delete the namespace, if this spec made it and nothing else is in it"
    _named_options(parser).add_argument("--with-namespace", action="store_true", help=text)
