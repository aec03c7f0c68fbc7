"""`loadtest` and `calibrate`: a verdict on the objective, and the rate that meets it."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from marina.arguments import INTERRUPTED, chosen, print_json, verb, with_build
from marina.terminal import as_typed

# A header whose value comes from the environment: `Authorization: Bearer $TOKEN`.
_VARIABLE = re.compile(r"^[^:]+:\s*(\w+\s+)?\$(\w+|\{\w+\})$")


def add_verbs(verbs: Any) -> None:
    """Their options."""
    _loadtest_options(
        verb(
            verbs,
            loadtest,
            "load a server and say whether it meets the objective: PASS, FAIL or INVALID",
            "marina loadtest --rate 200 --duration 60",
            "marina loadtest my/spec.yaml --url http://10.0.0.7:8080 --repeat 3",
            "marina loadtest --in-cluster --processes 4",
        )
    )
    _calibrate_options(
        verb(
            verbs,
            calibrate,
            "find the highest rate that meets the objective",
            "marina calibrate",
            "marina calibrate my/spec.yaml --tune",
        )
    )


def loadtest(options: argparse.Namespace) -> int:
    from config.errors import InputError
    from config.load import load_spec
    from loadtest import RunOptions, next_step, run_load_test, verdict_text

    spec, how = load_spec(options.spec, files=False), chosen(RunOptions, options)
    where = _where(options, spec.name)
    if (options.one_pod or options.service) and not options.in_cluster:
        raise InputError("`--one-pod` and `--service`: only with `--in-cluster`", hint="--in-cluster")
    if options.one_pod and options.service:
        raise InputError("`--one-pod`: not together with `--service`, whose Service chooses the pods")
    if options.in_cluster or options.dry_run:
        if where.headers or where.cacert or where.cert:
            text = "`--header`, `--cacert` and `--cert` are for a server behind `--url`"
            raise InputError(
                f"{text}, not for the pods of `--in-cluster`: their plan is stored in the cluster for all to read"
            )
        from k8s import make_plan
        from marina import in_cluster

        plan = make_plan(spec, options.out / spec.name)
        image = options.image or in_cluster.image_of(spec, options.out / spec.name)
        if options.dry_run:
            print(in_cluster.shown(spec, plan, image, how, options), end="")
            return 0
        where = replace(where, remote=in_cluster.elsewhere(plan, image, options))
    outcome = run_load_test(spec, how, where, quiet=options.quiet)
    if options.json:
        print_json(outcome.to_data())
    else:
        print(verdict_text(outcome))
        print(f"report {options.out / spec.name / 'verdict.html'}")
        if step := next_step(outcome, options.out / spec.name, _where_typed(options)):
            print(as_typed(f"hint: {step}", options.spec))
    return INTERRUPTED if outcome.interrupted else outcome.verdict.exit_code


def _where_typed(options: argparse.Namespace) -> list[str]:
    """What was typed to say which server is loaded, without a secret."""
    given = {
        "--in-cluster": options.in_cluster,
        "--one-pod": options.one_pod,
        "--service": options.service,
        "--context": options.context,
        "--kubeconfig": options.kubeconfig,
        "--image": options.image,
        "--url": options.url,
        "--pages-url": options.supervisor,
        "--cacert": options.cacert,
        "--cert": options.cert,
        "--key": options.key,
        "--any-package": options.any_package,
    }
    words = [[name] if value is True else [name, str(value)] for name, value in given.items() if value]
    # A secret that was typed itself is not repeated.
    headers = [["--header", text] for text in options.headers if _VARIABLE.search(text)]
    return [word for pair in [*words, *headers] for word in pair]


def calibrate(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from loadtest import CalibrateOptions, evidence_text
    from loadtest import calibrate as run

    spec = load_spec(options.spec, files=False)
    out, where = options.out / spec.name, _where(options, spec.name)
    how = chosen(CalibrateOptions, options)
    if options.in_cluster:
        from config.errors import InputError
        from k8s import make_plan
        from marina import in_cluster

        if options.tune:
            raise InputError("`--tune`: not together with `--in-cluster`, it starts servers with other settings")
        image = options.image or in_cluster.image_of(spec, out)
        where = replace(where, remote=in_cluster.one_pod(make_plan(spec, out), image, options))
    # Evidence of settings that were just found to be second best would mislead: the patch comes first.
    if options.tune and not _tuned(options, spec, how, where):
        return 0
    evidence = run(spec, how, where, quiet=options.quiet)
    if options.json:
        print_json(evidence.to_data())
    else:
        print(evidence_text(evidence))
        print(f"report {out / 'evidence.html'}")
    return evidence.exit_code


def _tuned(options: argparse.Namespace, spec: Any, how: Any, where: Any) -> bool:
    """Searches better settings and says what it found; true when the spec's own are the best."""
    from loadtest import find_package, objective_of, settings_space, tune_settings, tuning_record, tuning_text

    # A search takes minutes; what the calibration after it needs is asked for before it.
    find_package(where)
    tuning, space = tune_settings(spec, how, where.out, quiet=options.quiet), settings_space(spec, objective_of(spec))
    best_already = bool(tuning.best == tuning.tried[0])
    if not options.json:
        print(tuning_text(tuning, space, where.out))
    elif not best_already:
        print_json(tuning_record(tuning, space))
    return best_already


def _target_options(parser: argparse.ArgumentParser) -> None:
    """What the verbs that load a server have in common."""
    add = with_build(parser).add_argument
    add("--url", metavar="U", help="address of a server that is already running (default: start one)")
    text = "where its supervisor's pages are (default: ten ports above --url)"
    add("--pages-url", "--supervisor", dest="supervisor", metavar="U", help=text)
    text = "send this with every request; $VALUE is read from the environment and stored nowhere"
    add("--header", dest="headers", metavar="'NAME: $VALUE'", action="append", default=[], help=text)
    add("--cacert", metavar="FILE", type=Path, help="certificates to trust when --url or --pages-url is https")
    add(
        "--cert",
        metavar="FILE",
        type=Path,
        help="client certificate; the file also holds its key, unless --key names it",
    )
    add("--key", metavar="FILE", type=Path, help="the key of --cert")
    add("--any-package", action="store_true", help="do not ask which package the server serves")
    add("--repeat", metavar="N", type=int, help="number of runs; they are judged together")
    add("--processes", metavar="P", type=int, help="number of processes that send the load (default: 1)")
    add("--arrivals", choices=("constant", "poisson"), help="how requests are spaced (default: poisson)")
    add("--seed", metavar="N", type=int, help="seed of the poisson schedule (default: 0)")
    add("--warmup", dest="warmup_s", metavar="S", type=float, help="seconds of load before anything is measured")
    add(
        "--timeout",
        dest="timeout_s",
        metavar="S",
        type=float,
        help="seconds a client waits for an answer (default: 10, or twice p99_ms if that is longer)",
    )


def _loadtest_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    parser.add_argument(
        "--rate", metavar="R", type=float, help="requests/s to send (default: the spec's `slo.throughput_rps`)"
    )
    text = "seconds to measure (default: 30, or longer if the p99 needs more requests)"
    add = parser.add_argument
    add("--duration", dest="duration_s", metavar="S", type=float, help=text)
    text = "go on for at most S seconds while it is undecided (default: ten times the first run)"
    add("--max-duration", dest="max_duration_s", metavar="S", type=float, help=text)
    text = "replay recorded traffic: CSV or JSON lines with time and sample (default: the spec's `load.replay`)"
    add("--replay", metavar="FILE", type=Path, help=text)
    add("--speed", metavar="TIMES", type=float, help="replay it this many times as fast (default: 1)")
    text = "one long run, such as 90s, 30m or 2h; FAIL if memory, open files or latency grow"
    add("--soak", dest="soak_s", metavar="TIME", type=_seconds, help=text)
    text = "let the rate rise evenly, and say at which rate the objective is missed"
    add("--ramp", metavar="FROM:TO", type=_ramp, help=text)
    text = "send from pods in the cluster to every ready pod of the deployed service, `slo.throughput_rps` to each"
    add("--in-cluster", action="store_true", help=text)
    add("--one-pod", action="store_true", help="with --in-cluster: load only one pod")
    text = "with --in-cluster: send to this Service, which also reaches pods that start later (default: pod by pod)"
    add("--service", metavar="NAME", help=text)
    _cluster_options(parser)
    add("--dry-run", action="store_true", help="print the manifests that --in-cluster would apply, and send nothing")


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--context", metavar="C", help="context of the kubeconfig, for --in-cluster (default: the current one)")
    add(
        "--kubeconfig",
        metavar="FILE",
        type=Path,
        help="kubeconfig for --in-cluster (default: $KUBECONFIG, or ~/.kube/config)",
    )
    add(
        "--image", metavar="REF", help="image of the sending pods (default: what `marina image --target loadtest` made)"
    )


def _seconds(text: str) -> float:
    """`2h`; what is wrong with it, argparse says."""
    units = {"s": 1, "m": 60, "h": 3600}
    return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)


def _ramp(text: str) -> tuple[float, float]:
    """`10:200`; what is wrong with it, argparse says."""
    begin, end = text.split(":")
    return float(begin), float(end)


def _calibrate_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    add = parser.add_argument
    add("--first", metavar="R", type=float, help="rate of the first run, requests/s")
    add("--trial", dest="trial_s", metavar="S", type=float, help="seconds of each run")
    text = "seconds that all runs together may take (default: no limit; the start says about how long)"
    add("--max-duration", dest="max_duration_s", metavar="S", type=float, help=text)
    text = "how exactly to measure that rate, as a share of it (default: 0.03)"
    add("--tolerance", metavar="SHARE", type=float, help=text)
    text = "measure one pod of the deployed service, under its own limits, from pods in the cluster"
    add("--in-cluster", action="store_true", help=text)
    _cluster_options(parser)
    add(
        "--tune",
        action="store_true",
        help="first search better workers, threads and batching; writes a patch for the spec",
    )


def _where(options: argparse.Namespace, name: str) -> Any:
    from loadtest import TargetOptions, parse_header

    _check_certificates(options)
    return TargetOptions(
        out=options.out / name,
        url=options.url,
        supervisor=options.supervisor,
        any_package=options.any_package,
        headers=tuple(parse_header(text, os.environ) for text in options.headers),
        cacert=options.cacert,
        cert=options.cert,
        key=options.key,
    )


def _check_certificates(options: argparse.Namespace) -> None:
    import ssl

    from config.errors import InputError

    try:
        context = ssl.create_default_context(cafile=options.cacert)
    except (OSError, ValueError) as err:
        raise InputError(f"`--cacert`: {options.cacert} holds no certificates: {err}") from err
    if options.cert is None:
        if options.key is not None:
            raise InputError("`--key`: given without `--cert`, whose key it is", hint="--cert FILE --key FILE")
        return
    try:
        context.load_cert_chain(options.cert, options.key)
    except (OSError, ValueError) as err:
        text = f"`--cert`: {options.cert} is not a certificate with its key: {err}"
        raise InputError(text, hint="--cert client.pem --key client.key") from err
