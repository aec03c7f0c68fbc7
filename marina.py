"""The command line: maps verbs to a stage and errors to exit codes. Stages are imported when their verb runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config.errors import MarinaError, SpecError

EXIT_CODES = "exit codes: 0 done · 1 the answer is no · 2 the input is wrong · 3 the measurement cannot be trusted"
DEFAULT_SPEC = Path("config/examples/digits/spec.yaml")


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
        else:
            for finding in findings:
                print(f"{finding.level}: {finding}" + (f"\n  hint: {finding.hint}" if finding.hint else ""))
            if not findings:
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

    spec = load_spec(options.spec)
    from config.progress import Progress

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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="marina",
        description="From a PyTorch model to a TorchServe service that is proven to meet its objective.",
        epilog=EXIT_CODES,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _verb(
        verbs,
        check,
        "the completed spec, or every error in it",
        ["marina check config/examples/digits/spec.yaml", "marina check --properties config.properties"],
        properties=("FILE", Path, None, "look at a config.properties or model-config.yaml of yours instead"),
    )
    _verb(
        verbs,
        package,
        "the model as a verified MAR",
        ["marina package config/examples/resnet50/spec.yaml", "marina package my/spec.yaml --out /tmp/build --json"],
        out=("DIR", Path, Path("build"), "folder for DIR/NAME/model.mar and package.json"),
    )
    inspecting = _verb(
        verbs,
        inspect,
        "what is in a MAR, and whether it is whole and safe to load",
        ["marina inspect build/digits/model.mar", "marina inspect foreign.mar --json"],
        spec=False,
    )
    inspecting.add_argument("mar", metavar="FILE.mar", type=Path, help="an archive of Marina's or of anybody's")
    return parser


def _verb(
    verbs: Any,
    run: Any,
    text: str,
    examples: list[str],
    *,
    spec: bool = True,
    **options: tuple[str, type, Any, str],
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
        parser.add_argument(
            "spec", metavar="SPEC", type=Path, nargs="?", default=DEFAULT_SPEC, help=f"default: {DEFAULT_SPEC}"
        )
    for name, (metavar, kind, default, help_text) in options.items():
        shown = help_text if default is None else f"{help_text} (default: {default})"
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=kind, default=default, help=shown)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run)
    return parser


def _error_record(err: MarinaError) -> dict[str, Any]:
    record: dict[str, Any] = {"error": err.message, "hint": err.hint, "exit_code": err.exit_code}
    if isinstance(err, SpecError):
        record["problems"] = [vars(problem) for problem in err.problems]
    return record


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    sys.exit(main())
