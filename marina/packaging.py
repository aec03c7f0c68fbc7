"""`check`, `package` and `inspect`: from a spec to a verified MAR."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import print_json, verb, with_build


def add_verbs(verbs: Any) -> None:
    """Their options."""
    added = verb(verbs, check, "the completed spec, or every error in it", "marina check", "marina check my/spec.yaml",
                 "marina check --properties config.properties")  # fmt: skip
    added.add_argument("--properties", metavar="FILE", type=Path,
                       help="look at a config.properties or model-config.yaml of yours instead")  # fmt: skip
    with_build(verb(verbs, package, "the model as a verified MAR",
                    "marina package config/examples/resnet50/spec.yaml",
                    "marina package my/spec.yaml --out /tmp/build --json"))  # fmt: skip
    added = verb(verbs, inspect, "what is in a MAR, and whether it is whole and safe to load",
                 "marina inspect build/digits/model.mar", "marina inspect foreign.mar --json", spec=False)  # fmt: skip
    added.add_argument("mar", metavar="FILE.mar", type=Path, help="an archive of Marina's or of anybody's")


def check(options: argparse.Namespace) -> int:
    if options.properties:
        from config.lint import lint_file

        findings = lint_file(options.properties)
        if options.json:
            print_json([vars(finding) for finding in findings])
        for finding in [] if options.json else findings:
            print(f"{finding.level}: {finding}" + (f"\n  hint: {finding.hint}" if finding.hint else ""))
        if not options.json and not findings:
            print(f"{options.properties}: nothing to complain about")
        return 1 if findings else 0
    import yaml

    from config.load import load_spec

    completed = load_spec(options.spec).completed()
    if options.json:
        print_json(completed)
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
        print_json(packaged.model_dump(mode="json", by_alias=True))
    else:
        agreed = packaged.record.agreement
        print(f"{options.out / spec.name / packaged.mar}  {packaged.bytes / 1e6:.1f} MB  sha256 {packaged.sha256}")
        print(f"agreement {agreed.agreement:.4f} ({agreed.measure} on {agreed.count} {agreed.inputs} inputs)")
    return 0


def inspect(options: argparse.Namespace) -> int:
    from archiver.inspect import inspect as look

    report = look(options.mar)
    if options.json:
        print_json(report.as_data())
    else:
        print(report.as_text())
    return 0 if report.sound else 1
