"""`check`, `package`, `inspect` and `image`: from a spec to a verified MAR, and to a container that serves it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from marina.arguments import print_json, verb, with_build
from marina.ending import cleanup_on_exit
from marina.terminal import coloured


def add_verbs(verbs: Any) -> None:
    """Their options."""
    added = verb(
        verbs,
        check,
        "print the spec with every default filled in, or every error in it",
        "marina check",
        "marina check my/spec.yaml",
        "marina check --fields",
        "marina check --properties config.properties",
    )
    added.add_argument(
        "--properties",
        metavar="FILE",
        type=Path,
        help="look at a config.properties or model-config.yaml of yours instead",
    )
    added.add_argument("--fields", action="store_true", help="explain every field that a spec may have, and stop")
    added = with_build(
        verb(
            verbs,
            package,
            "compile the model into a MAR, and compare its answers with the original's",
            "marina package config/examples/resnet50/spec.yaml",
            "marina package my/spec.yaml --out /tmp/build --json",
        )
    )
    added.add_argument(
        "--quick", action="store_true", help="for a first look: compile nothing, and take fp32 instead of int8"
    )
    added = verb(
        verbs,
        inspect,
        "say what is in a MAR, and whether it is whole and safe to load",
        "marina inspect build/digits/model.mar",
        "marina inspect foreign.mar --json",
        spec=False,
    )
    added.add_argument("mar", metavar="FILE.mar", type=Path, help="a MAR made by Marina or by anybody else")
    _image_options(
        verb(
            verbs,
            image,
            "build a container image of the package",
            "marina image",
            "marina image my/spec.yaml --push",
            "marina image my/spec.yaml --wheels build/wheels --base my.registry/python:3.11",
        )
    )


def check(options: argparse.Namespace) -> int:
    if options.fields:
        from config.reference import render_reference

        print(render_reference(), end="")
        return 0
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

    from config.combinations import cautions
    from config.load import load_spec

    spec = load_spec(options.spec)
    for caution in cautions(spec):
        print(f"warning: {spec.file}: {caution}", file=sys.stderr)
    completed = spec.completed()
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
    if options.quick:
        spec = spec.for_first_look()
    from archiver.package import package as build

    with cleanup_on_exit():
        packaged = build(spec, options.out / spec.name, progress=progress)
    if options.json:
        print_json(packaged.model_dump(mode="json", by_alias=True))
    else:
        print(f"{options.out / spec.name / packaged.mar}  {packaged.bytes / 1e6:.1f} MB  sha256 {packaged.sha256}")
        print(f"agreement {packaged.record.agreement.text}")
        if options.quick:
            whole = f"marina package {shlex.quote(str(options.spec))}"
            print(f"for a first look: slower than what will be deployed, which `{whole}` makes")
    return 0


def inspect(options: argparse.Namespace) -> int:
    from archiver.inspecting import inspect as look

    report = look(options.mar)
    if options.json:
        print_json(report.as_data())
    else:
        print(coloured(report.as_text(), sys.stdout))
    return 0 if report.sound else 1


def image(options: argparse.Namespace) -> int:
    from archiver.containers import ImageOptions, build_image
    from config.load import load_spec
    from config.progress import Progress

    # The image holds the package; what that was made of need not be here.
    spec = load_spec(options.spec, files=False)
    given = {name: value for name in vars(ImageOptions()) if (value := getattr(options, name)) is not None}
    given["build_arg"] = tuple(options.build_arg or ())
    built = build_image(spec, options.out / spec.name, ImageOptions(**given), progress=Progress(quiet=options.quiet))
    if options.json:
        print_json(built.to_data())
    else:
        at = f"@{built.digest}" if built.digest else ""
        print(f"{built.ref}:{built.tag}{at}  {built.layout.bytes / 1e6:.1f} MB in {len(built.layout.layers)} layers")
        for layer in built.layout.layers:
            print(f"  {layer.bytes / 1e6:8.1f} MB  {layer.digest[7:19]}  {layer.created_by}")
    return 0


def _image_options(parser: argparse.ArgumentParser) -> None:
    add = with_build(parser).add_argument
    add(
        "--target",
        choices=("cpu", "cuda", "loadtest", "vllm"),
        help="what the image is for (default: what the spec needs); loadtest sends load",
    )
    add("--builder", metavar="NAME", help="docker (with buildx), podman or buildah (default: the first that works)")
    add("--base", metavar="REF", help="the image to start from; it must have Python 3.11")
    add("--base-digest", metavar="sha256:…", help="pin the base image to this digest")
    add(
        "--wheels",
        metavar="DIR",
        type=Path,
        help="install from this folder and ask no package index; `make wheels` fills one",
    )
    add(
        "--pip-conf",
        metavar="FILE",
        type=Path,
        help="configuration of pip during the build, such as your index and its password",
    )
    add("--build-arg", metavar="NAME=VALUE", action="append", help="set BUILD_BASE or TORCH_INDEX of docker/Dockerfile")
    add("--tag", metavar="TAG", help="tag of the image (default: the spec's version)")
    add("--model-at-runtime", action="store_true", help="leave the MAR out; mount it at /model/model.mar")
    add("--push", action="store_true", help="send it to `kubernetes.registry`; pods then ask for it by digest")
