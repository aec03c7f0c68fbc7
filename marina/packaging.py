"""`check`, `package`, `inspect` and `image`: from a spec to a checked MAR, and to a container image that serves it."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marina.arguments import TRUST_PICKLE, add_out_option, add_verb, print_json, print_result, read_spec
from marina.cleanup import cleanup_on_exit
from marina.config.errors import InputError
from marina.config.progress import Progress
from marina.terminal import coloured, localised

if TYPE_CHECKING:
    from marina.config.spec import Spec


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        check,
        "print the spec with every default filled in, or every error in it",
        "marina check",
        "marina check my/spec.yaml",
        "marina check --fields",
        "marina check --schema > spec.schema.json",
        "marina check --properties config.properties",
        progress=False,
    )
    text = "check a config.properties or model-config.yaml of TorchServe instead"
    added.add_argument("--properties", metavar="FILE", type=Path, help=text)
    added.add_argument("--fields", action="store_true", help="explain every field of a spec, and stop")
    added.add_argument("--schema", action="store_true", help="print the JSON Schema of a spec, for editors, and stop")
    added = add_out_option(
        add_verb(
            verbs,
            package,
            "compile the model into a MAR, and compare its answers with the original model's",
            "marina package config/examples/resnet50/spec.yaml",
            "marina package my/spec.yaml --out /tmp/build --json",
        )
    )
    added.add_argument(
        "--quick", action="store_true", help="for a first look: compile nothing, and use fp32 instead of int8 or int4"
    )
    added.add_argument("--trust-pickle", action="store_true", help=TRUST_PICKLE)
    added = add_verb(
        verbs,
        inspect,
        "show what is in a packed model, whether it is as recorded, and what runs when it is loaded",
        "marina inspect build/digits/model.mar",
        "marina inspect foreign.mar --json",
        spec=False,
        progress=False,
    )
    added.add_argument(
        "mar", metavar="FILE.mar", type=Path, help="a MAR, a .tar.gz or a folder, made by Marina or by anyone else"
    )


def add_image_verb(verbs: Any) -> None:
    """Adds `image`, which comes later in the flow."""
    _image_options(
        add_verb(
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
        from marina.config.reference import render_reference

        if options.json:
            raise InputError("`--json`: not together with `--fields`, which prints a page in Markdown")

        print(render_reference(), end="")
        return 0
    if options.schema:
        from marina.config.schema import render_schema

        print(render_schema(), end="")
        return 0
    if options.properties:
        return _lint(options)
    import yaml

    from marina.config.combinations import find_warnings
    from marina.config.differences import differences
    from marina.config.load import load_spec

    spec = load_spec(options.spec)
    for caution in find_warnings(spec):
        print(f"warning: {spec.file}: {caution}", file=sys.stderr)
    for topic, text in differences(spec).items():
        print(f"note: {topic}: {text}", file=sys.stderr)
    completed = spec.completed()
    if options.json:
        print_json(completed)
    else:
        print(yaml.safe_dump(completed, sort_keys=False, allow_unicode=True), end="")
    return 0


def _lint(options: argparse.Namespace) -> int:
    from marina.config.lint import lint_file

    findings = lint_file(options.properties)
    lines = [
        f"{finding.level}: {finding}" + (f"\n  hint: {finding.hint}" if finding.hint else "") for finding in findings
    ]
    print_result(options, list(map(vars, findings)), *lines or [f"{options.properties}: no problems found"])
    return 1 if findings else 0


def package(options: argparse.Namespace) -> int:
    from marina.config.load import load_spec

    spec = load_spec(options.spec)
    progress = Progress(quiet=options.quiet)
    progress.say(f"packaging {spec.name} {spec.version} from {options.spec}")
    if options.quick:
        spec = spec.uncompiled()
    if options.trust_pickle:
        spec = spec.trusting()
    if spec.model.saved_whole and spec.model.trust_pickle:
        spec = _fetched_for_good(spec, progress)
    from marina.archiver.package import package as build

    with cleanup_on_exit():
        packaged = build(spec, options.out / spec.name, progress=progress)
    if options.json:
        print_json(packaged.model_dump(mode="json", by_alias=True))
    else:
        print(f"{options.out / spec.name / packaged.mar}  {packaged.bytes / 1e6:.1f} MB  sha256 {packaged.sha256}")
        print(f"agreement {packaged.record.agreement.text}")
        if options.quick:
            command = localised(f"marina package {options.spec}", options)
            print(f"for a first look only: not compiled, so slower; before you deploy, run `{command}`")
    return 0


def _fetched_for_good(spec: "Spec", progress: Progress) -> "Spec":
    """The spec with all that lies elsewhere on this machine. From now on this process has no network, as the code of a
    pickle will run in it: while it is read, and whenever the module in it computes."""
    from marina.archiver.fetching import fetch_sources
    from marina.archiver.isolation import leave_network

    spec = fetch_sources(spec, progress)
    # pip asks for them when the package is made.
    reason = "`model.requirements` come from it" if spec.model.requirements else leave_network()
    if reason:
        progress.say(f"  kept from the network in Python only, and only while `{spec.model.source}` is read: {reason}")
    return spec


def inspect(options: argparse.Namespace) -> int:
    from marina.archiver.inspecting import inspect as look

    report = look(options.mar)
    print_result(options, report.as_data(), coloured(report.as_text(), sys.stdout))
    return 0 if report.sound else 1


def image(options: argparse.Namespace) -> int:
    from marina.archiver.containers import ImageOptions, build_image

    spec = read_spec(options)
    given = {name: value for name in vars(ImageOptions()) if (value := getattr(options, name)) is not None}
    given["build_arg"] = tuple(options.build_arg or ())
    built = build_image(spec, options.out / spec.name, ImageOptions(**given), progress=Progress(quiet=options.quiet))
    if options.json:
        print_json(built.to_data())
    else:
        at = f"@{built.digest}" if built.digest else ""
        print(f"{built.ref}:{built.tag}{at}  {built.bytes / 1e6:.1f} MB in {len(built.layers)} layers")
        for layer in built.layers:
            print(f"  {layer.bytes / 1e6:8.1f} MB  {layer.digest[7:19]}  {layer.created_by}")
    return 0


def _image_options(parser: argparse.ArgumentParser) -> None:
    add = add_out_option(parser).add_argument
    text = "which image to build (default: the one that the spec needs); loadtest is the one that sends load"
    add("--target", choices=("cpu", "cuda", "loadtest", "vllm"), help=text)
    add("--builder", metavar="NAME", help="docker (with buildx), podman or buildah (default: the first that works)")
    add("--base", metavar="REF", help="base image; it must have Python 3.11")
    add("--base-digest", metavar="sha256:…", help="pin the base image to this digest")
    text = "install from the wheels in this folder, without a package index; `make wheels` fills one"
    add("--wheels", metavar="DIR", type=Path, help=text)
    text = "configuration of pip for the build, such as your index and its password"
    add("--pip-conf", metavar="FILE", type=Path, help=text)
    add("--build-arg", metavar="NAME=VALUE", action="append", help="set BUILD_BASE or TORCH_INDEX of docker/Dockerfile")
    add("--tag", metavar="TAG", help="tag of the image (default: the spec's version)")
    add("--model-at-runtime", action="store_true", help="leave the MAR out; mount it at /model/model.mar")
    add("--push", action="store_true", help="push it to `kubernetes.registry`; pods then use it by digest")
