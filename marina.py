"""The command line: maps verbs to a stage and errors to exit codes. Stages are imported when their verb runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from config.errors import MarinaError, SpecError

EXIT_CODES = "exit codes: 0 done · 1 the answer is no · 2 the input is wrong · 3 the measurement cannot be trusted"
DEFAULT_SPEC = Path("config/examples/digits/spec.yaml")
BUILD = Path("build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except MarinaError as err:
        if options.json:
            _print_json(_error_record(err))
        else:
            print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `marina … | head` is no failure; without this Python complains again when it closes stdout.
        sys.stderr.close()
        return 0


def check(options: argparse.Namespace) -> int:
    if options.properties:
        from config.lint import lint_file

        findings = lint_file(options.properties)
        if options.json:
            _print_json([vars(finding) for finding in findings])
        for finding in [] if options.json else findings:
            print(f"{finding.level}: {finding}" + (f"\n  hint: {finding.hint}" if finding.hint else ""))
        if not options.json and not findings:
            print(f"{options.properties}: nothing to complain about")
        return 1 if findings else 0
    import yaml

    from config.load import load_spec

    completed = load_spec(options.spec).completed()
    if options.json:
        _print_json(completed)
    else:
        print(yaml.safe_dump(completed, sort_keys=False, allow_unicode=True), end="")
    return 0


def package(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from config.progress import Progress

    spec = load_spec(options.spec)
    progress = Progress(quiet=options.quiet)
    progress.say(f"packaging {spec.name} {spec.version} from {options.spec}")
    from archiver.package import package as build

    packaged = build(spec, options.out / spec.name, progress=progress)
    if options.json:
        _print_json(packaged.model_dump(mode="json", by_alias=True))
    else:
        agreed = packaged.record.agreement
        print(f"{options.out / spec.name / packaged.mar}  {packaged.bytes / 1e6:.1f} MB  sha256 {packaged.sha256}")
        print(f"agreement {agreed.agreement:.4f} ({agreed.measure} on {agreed.count} {agreed.inputs} inputs)")
    return 0


def inspect(options: argparse.Namespace) -> int:
    from archiver.inspect import inspect as look

    report = look(options.mar)
    if options.json:
        _print_json(report.as_data())
    else:
        print(report.as_text())
    return 0 if report.sound else 1


def serve(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from server.serve import serve as run

    # A pod has the spec and the MAR, but not the files that the model was made of.
    spec = load_spec(options.spec, files=False)
    mar = options.mar or options.out / spec.name / "model.mar"
    return run(spec, mar=mar, port_base=options.port_base, host=options.host)


def loadtest(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from loadtest.runs import Options, run, summary

    spec = load_spec(options.spec, files=False)
    outcome = run(spec, _chosen(Options, options), _where(options, spec.name), quiet=options.quiet)
    if options.json:
        _print_json(outcome.to_data())
    else:
        print(summary(outcome))
        print(f"report {options.out / spec.name / 'verdict.html'}")
    return outcome.verdict.exit_code


def calibrate(options: argparse.Namespace) -> int:
    from config.load import load_spec
    from loadtest.calibrate import Options, summary
    from loadtest.calibrate import calibrate as run

    spec = load_spec(options.spec, files=False)
    out = options.out / spec.name
    chosen = _chosen(Options, options)
    # Evidence of settings that were just found to be second best would mislead: the patch comes first.
    if options.tune and not _tuned(options, spec, chosen, out):
        return 0
    evidence = run(spec, chosen, _where(options, spec.name), quiet=options.quiet)
    if options.json:
        _print_json(evidence.to_data())
    else:
        print(summary(evidence))
        print(f"report {out / 'evidence.html'}")
    return evidence.exit_code


def _tuned(options: argparse.Namespace, spec: Any, chosen: Any, out: Path) -> bool:
    """Searches better settings and says what it found; true when the spec's own are the best."""
    from loadtest.retune import record, retune, space_of, summary
    from loadtest.slo import objective_of

    found, space = retune(spec, chosen, out, quiet=options.quiet), space_of(spec, objective_of(spec))
    best_already = bool(found.best == found.tried[0])
    if not options.json:
        print(summary(found, space, out))
    elif not best_already:
        _print_json(record(found, space))
    return best_already


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="marina",
        description="From a PyTorch model to a TorchServe service that is proven to meet its objective.",
        epilog=EXIT_CODES,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    verb = _verb(verbs, check, "the completed spec, or every error in it", "marina check", "marina check my/spec.yaml",
                 "marina check --properties config.properties")  # fmt: skip
    verb.add_argument("--properties", metavar="FILE", type=Path,
                      help="look at a config.properties or model-config.yaml of yours instead")  # fmt: skip
    _with_build(_verb(verbs, package, "the model as a verified MAR",
                      "marina package config/examples/resnet50/spec.yaml",
                      "marina package my/spec.yaml --out /tmp/build --json"))  # fmt: skip
    verb = _verb(verbs, inspect, "what is in a MAR, and whether it is whole and safe to load",
                 "marina inspect build/digits/model.mar", "marina inspect foreign.mar --json", spec=False)  # fmt: skip
    verb.add_argument("mar", metavar="FILE.mar", type=Path, help="an archive of Marina's or of anybody's")
    _serve_options(_verb(verbs, serve, "a running server, until it is told to stop", "marina serve",
                         "marina serve my/spec.yaml --port-base 9000 --host 0.0.0.0"))  # fmt: skip
    _loadtest_options(_verb(verbs, loadtest, "a verdict on the objective: PASS, FAIL or INVALID",
                            "marina loadtest --rate 200 --duration 60",
                            "marina loadtest my/spec.yaml --url http://10.0.0.7:8080 --repeat 3"))  # fmt: skip
    _calibrate_options(_verb(verbs, calibrate, "the highest rate that meets the objective, as evidence",
                             "marina calibrate", "marina calibrate my/spec.yaml --tune"))  # fmt: skip
    return parser


def _verb(
    verbs: Any, run: Callable[[argparse.Namespace], int], text: str, *examples: str, spec: bool = True
) -> argparse.ArgumentParser:
    """One verb with what all have: --json, --quiet and examples in its help."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        run.__name__,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="examples:\n  " + "\n  ".join(examples) + f"\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if spec:
        shown = f"default: {DEFAULT_SPEC}"
        parser.add_argument("spec", metavar="SPEC", type=Path, nargs="?", default=DEFAULT_SPEC, help=shown)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run)
    return parser


def _with_build(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    text = "folder that holds NAME/model.mar and the records (default: build)"
    parser.add_argument("--out", metavar="DIR", type=Path, default=BUILD, help=text)
    return parser


def _serve_options(parser: argparse.ArgumentParser) -> None:
    add = _with_build(parser).add_argument
    add("--mar", metavar="FILE", type=Path, help="the archive (default: DIR/NAME/model.mar)")
    add("--port-base", metavar="N", type=int, default=8080,
        help="inference on N, management N+1, metrics N+2, gRPC N+3 and N+4, pages N+10 (default: 8080)")  # fmt: skip
    add("--host", metavar="ADDRESS", default="127.0.0.1",
        help="where inference and the pages listen; all else is on loopback (default: 127.0.0.1)")  # fmt: skip


def _target_options(parser: argparse.ArgumentParser) -> None:
    """What the verbs that load a server have in common."""
    add = _with_build(parser).add_argument
    add("--url", metavar="U", help="a server that is there already (default: start one)")
    add("--supervisor", metavar="U", help="its supervisor's pages (default: ten ports above --url)")
    add("--any-package", action="store_true", help="do not ask which package the server serves")
    add("--repeat", metavar="N", type=int, help="runs, or searches")
    add("--processes", metavar="P", type=int, help="generator processes (default: 1)")
    add("--arrivals", choices=("constant", "poisson"), help="the schedule of requests, fixed beforehand")
    add("--seed", metavar="N", type=int, help="of the poisson schedule (default: 0)")
    add("--warmup", dest="warmup_s", metavar="S", type=float, help="seconds before anything is measured")
    add("--timeout", dest="timeout_s", metavar="S", type=float, help="seconds a client waits (default: 10)")


def _loadtest_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    parser.add_argument("--rate", metavar="R", type=float, help="requests/s (default: the spec's `slo.throughput_rps`)")
    text = "seconds that are measured (default: 30, or what p99 needs)"
    parser.add_argument("--duration", dest="duration_s", metavar="S", type=float, help=text)


def _calibrate_options(parser: argparse.ArgumentParser) -> None:
    _target_options(parser)
    add = parser.add_argument
    add("--first", metavar="R", type=float, help="rate of the first run, requests/s")
    add("--trial", dest="trial_s", metavar="S", type=float, help="seconds of each run")
    add("--tolerance", metavar="SHARE", type=float, help="how closely the knee is found (default: 0.03)")
    add("--tune", action="store_true", help="search workers, threads and batching first; writes a patch to the spec")


def _where(options: argparse.Namespace, name: str) -> Any:
    from loadtest.session import Where

    return Where(
        out=options.out / name, url=options.url, supervisor=options.supervisor, any_package=options.any_package
    )


def _chosen(kind: Any, options: argparse.Namespace) -> Any:
    """A stage's options from those that were given; InputError says which one is out of range."""
    from pydantic import ValidationError

    from config.errors import InputError

    given = {name: value for name in kind.model_fields if (value := getattr(options, name, None)) is not None}
    try:
        return kind(**given)
    except ValidationError as err:
        first = err.errors()[0]
        name = str(first["loc"][0]).removesuffix("_s")
        raise InputError(f"`--{name}`: got `{first['input']}`: {first['msg'].lower()}") from err


def _error_record(err: MarinaError) -> dict[str, Any]:
    record: dict[str, Any] = {"error": err.message, "hint": err.hint, "exit_code": err.exit_code}
    if isinstance(err, SpecError):
        record["problems"] = [vars(problem) for problem in err.problems]
    return record


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    sys.exit(main())
