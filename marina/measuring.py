"""`loadtest` and `calibrate`: judge whether the objective is met, and find the rate up to which it is."""

import argparse
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from marina.arguments import (
    INTERRUPTED,
    add_out_option,
    add_verb,
    print_json,
    print_result,
    read_spec,
    refuse_ignored,
    stage_options,
)
from marina.config.duration import duration_s
from marina.config.errors import InputError, as_input_error
from marina.terminal import localised

# A header whose value comes from the environment: `Authorization: Bearer $TOKEN`.
_VARIABLE = re.compile(r"^[^:]+:\s*(\w+\s+)?\$(\w+|\{\w+\})$")


def add_verbs(verbs: Any) -> None:
    _loadtest_options(
        add_verb(
            verbs,
            loadtest,
            "load a server and say whether it meets the objective: PASS, FAIL or INVALID",
            "marina loadtest --rate 200 --duration 2m",
            "marina loadtest my/spec.yaml --url http://10.0.0.7:8080 --repeat 3",
            "marina loadtest --in-cluster --processes 4",
        )
    )
    _calibrate_options(
        add_verb(
            verbs,
            calibrate,
            "find the highest rate that meets the objective",
            "marina calibrate",
            "marina calibrate my/spec.yaml --tune",
        )
    )


def loadtest(options: argparse.Namespace) -> int:
    from marina.loadtest.running import RunOptions, measuring_into, next_step, run_load_test, verdict_text

    spec, how = read_spec(options), stage_options(RunOptions, options)
    options.in_cluster |= options.dry_run
    _check_target(options)
    where = server_options(options, spec.name)
    if options.one_pod and options.service:
        raise InputError("`--one-pod`: not together with `--service`, whose Service chooses the pods")
    if options.in_cluster:
        from marina import in_cluster
        from marina.k8s.manifests import load_image, make_plan

        plan = make_plan(spec, options.out / spec.name)
        image = options.image or load_image(options.out / spec.name, spec)
        if options.dry_run:
            print(in_cluster.dry_run_text(spec, plan, image, how, options), end="")
            return 0
        target = in_cluster.target_of(plan, image, options, service=options.service, one_pod=options.one_pod)
        where = replace(where, remote=target)
    with measuring_into(where.out):
        outcome = run_load_test(spec, how, where, quiet=options.quiet)
    if options.json:
        print_json(outcome.to_data())
    else:
        print(verdict_text(outcome))
        print(f"report {options.out / spec.name / 'verdict.html'}")
        if step := next_step(outcome, options.out / spec.name, _target_arguments(options)):
            print(localised(f"hint: {step}", options))
    return INTERRUPTED if outcome.interrupted else outcome.verdict.exit_code


def _check_target(options: argparse.Namespace) -> None:
    of_pods = ("one_pod", "service", "context", "kubeconfig", "image")
    of_a_server = ("url", "supervisor", "headers", "cacert", "cert", "key")
    if options.in_cluster:
        refuse_ignored(options, of_a_server, "not with `--in-cluster`, which sends to pods by their own addresses")
    else:
        refuse_ignored(options, of_pods, "only with `--in-cluster`")


def _target_arguments(options: argparse.Namespace) -> list[str]:
    """The given arguments that say which server is loaded, without secrets, to repeat them in a hint."""
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
    # A header whose value was typed, and not its variable, may contain a secret.
    headers = [["--header", text] for text in options.headers if _VARIABLE.search(text)]
    return [word for pair in [*words, *headers] for word in pair]


def calibrate(options: argparse.Namespace) -> int:
    from marina.loadtest.calibrating import CalibrateOptions, evidence_text
    from marina.loadtest.calibrating import calibrate as run
    from marina.loadtest.running import measuring_into

    spec = read_spec(options)
    _check_target(options)
    out, where = options.out / spec.name, server_options(options, spec.name)
    how = stage_options(CalibrateOptions, options)
    if options.tune and (options.in_cluster or options.url):
        raise InputError("`--tune`: not with `--in-cluster` or `--url`: it starts servers with other settings")
    if options.tune and spec.model.writes:
        text = "`--tune`: not for a language model, which has one worker and slots instead of batches"
        raise InputError(text, hint="set `text.slots` and `serving.threads`, and calibrate without `--tune`")
    with measuring_into(out), ExitStack() as stack:
        if options.in_cluster:
            from marina import in_cluster
            from marina.k8s.manifests import load_image, make_plan

            image = options.image or load_image(out, spec)
            copy = in_cluster.copy_of_a_pod(make_plan(spec, out), image, options)
            where = replace(where, remote=stack.enter_context(copy))
        # Better settings should be applied first: evidence of the present ones would mislead.
        if options.tune and not _tune(options, spec, how, where):
            return 0
        evidence = run(spec, how, where, quiet=options.quiet)
    print_result(options, evidence.to_data(), evidence_text(evidence), f"report {out / 'evidence.html'}")
    return evidence.exit_code


def _tune(options: argparse.Namespace, spec: Any, how: Any, where: Any) -> bool:
    """Searches for better settings and prints them; returns whether the spec's own are the best."""
    from marina.loadtest.calibrating import tune_settings
    from marina.loadtest.running import find_package

    # A search takes minutes: if the calibration after it has no package, fail now.
    find_package(where)
    tuning = tune_settings(spec, how, where.out, quiet=options.quiet)
    if not options.json:
        print(tuning.to_text(spec.file))
    elif not tuning.unchanged:
        print_json(tuning.to_data())
    return bool(tuning.unchanged)


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that all verbs share that load a server."""
    add = add_out_option(parser).add_argument
    text = "address of its supervisor's pages (default: ten ports above --url)"
    add("--pages-url", "--supervisor", dest="supervisor", metavar="U", help=text)
    add("--any-package", action="store_true", help="do not check which package the server at --url serves")
    add("--arrivals", choices=("constant", "poisson"), help="how requests are spaced (default: poisson)")
    add("--seed", metavar="N", type=int, help="seed of the poisson schedule (default: 0)")
    text = "how long a client waits for an answer (default: 10, or twice p99_ms if that is longer)"
    add("--timeout", dest="timeout_s", metavar="TIME", type=duration_s, help=text)
    text = "send this header with every request; $VALUE is read from the environment and stored nowhere"
    add("--header", dest="headers", metavar="'NAME: $VALUE'", action="append", default=[], help=text)
    add("--cacert", metavar="FILE", type=Path, help="certificates to trust of servers and pages at https")
    text = "client certificate; the file must also contain its key, unless --key is given"
    add("--cert", metavar="FILE", type=Path, help=text)
    add("--key", metavar="FILE", type=Path, help="key of the client certificate")


def _target_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `loadtest` and `calibrate` share."""
    add = parser.add_argument
    add("--url", metavar="U", help="address of a server that is already running (default: start one)")
    add_load_options(parser)
    add("--processes", metavar="P", type=int, help="number of processes that send the load (default: 1)")


def _loadtest_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    add = parser.add_argument
    add("--rate", metavar="R", type=float, help="requests/s to send (default: the spec's `slo.throughput_rps`)")
    add("--repeat", metavar="N", type=int, help="number of runs, which are judged together (default: 1)")
    text = "load before anything is measured (default: 5)"
    add("--warmup", dest="warmup_s", metavar="TIME", type=duration_s, help=text)
    text = "how long to measure (default: 30, or longer if the p99 needs more requests)"
    add("--duration", dest="duration_s", metavar="TIME", type=duration_s, help=text)
    text = "measure for at most this long while the verdict is undecided (default: ten times the first run)"
    add("--max-duration", dest="max_duration_s", metavar="TIME", type=duration_s, help=text)
    text = "replay recorded traffic: CSV or JSON lines with time and sample (default: the spec's `load.replay`)"
    add("--replay", metavar="FILE", type=Path, help=text)
    add("--speed", metavar="TIMES", type=float, help="replay it this many times as fast (default: 1)")
    text = "one long run, such as 2h; FAIL if memory, open files or latency grow"
    add("--soak", dest="soak_s", metavar="TIME", type=duration_s, help=text)
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
    text = "kubeconfig for --in-cluster (default: $KUBECONFIG, or ~/.kube/config)"
    add("--kubeconfig", metavar="FILE", type=Path, help=text)
    add(
        "--image", metavar="REF", help="image of the sending pods (default: what `marina image --target loadtest` made)"
    )


def _calibrate_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    add = parser.add_argument
    text = "load before each run (default: 2)"
    add("--warmup", dest="warmup_s", metavar="TIME", type=duration_s, help=text)
    text = "rate of the first run, requests/s (default: a little below what short bursts show)"
    add("--first", metavar="R", type=float, help=text)
    text = "how long each run is (default: as long as its requests and a growing queue need)"
    add("--trial", dest="trial_s", metavar="TIME", type=duration_s, help=text)
    text = "how long all runs together may take (default: no limit; an estimate is printed at the start)"
    add("--max-duration", dest="max_duration_s", metavar="TIME", type=duration_s, help=text)
    text = "how precisely to find the rate, as a share of it (default: 0.05)"
    add("--tolerance", metavar="SHARE", type=float, help=text)
    text = "measure a copy of a pod of the deployed service, under its own limits, from pods in the cluster"
    add("--in-cluster", action="store_true", help=text)
    _cluster_options(parser)
    text = "first search for better workers, threads and batching, and say what to write into the spec"
    add("--tune", action="store_true", help=text)


def server_options(options: argparse.Namespace, name: str) -> Any:
    """The server that these options name, as `TargetOptions`."""
    from marina.loadtest.running import TargetOptions
    from marina.loadtest.sending import parse_header

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

    with as_input_error(f"`--cacert`: {options.cacert} contains no certificates"):
        context = ssl.create_default_context(cafile=options.cacert)
    if options.cert is None:
        if options.key is not None:
            raise InputError("`--key`: only together with `--cert`", hint="--cert FILE --key FILE")
        return
    hint = "--cert client.pem --key client.key"
    with as_input_error(f"`--cert`: {options.cert} is not a certificate with its key", hint=hint):
        context.load_cert_chain(options.cert, options.key)
