"""`demo`: the whole way once, from a spec to a verdict and verified manifests, on this machine, without a network."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config.errors import MarinaError, Refused, ToolMissing
from marina.arguments import BUILD, DEFAULT_SPEC, print_json, verb
from marina.ending import cleanup_on_exit
from marina.terminal import as_typed

# A busy machine may take several runs to a verdict; a demo does not wait for ever.
_WARMUP_S, _LONGEST_S = 3.0, 120.0
_WITHOUT_OBJECTIVE_RPS = 20.0
# The example that is installed with Marina, for a demo outside of the repository.
_INSTALLED_SPEC = Path(__file__).parents[2] / DEFAULT_SPEC
_OUT = BUILD / "demo"
_STAGES = ("check", "package", "serve", "load", "verdict", "manifests", "verify")


def add_verbs(verbs: Any) -> None:
    """Its options."""
    added = verb(
        verbs,
        demo,
        "do every step once: check, package, serve, load, manifests, verify",
        "marina demo",
        "marina demo my/spec.yaml",
    )
    # Not the usual folder: what was measured and built there is none of a demo's business.
    added.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=_OUT,
        help=f"folder that holds NAME/model.mar and the records (default: {_OUT})",
    )


def demo(options: argparse.Namespace) -> int:
    began = time.monotonic()
    if options.spec == DEFAULT_SPEC and not DEFAULT_SPEC.exists():
        options.spec = _INSTALLED_SPEC
    with cleanup_on_exit() as interrupted:
        record = _Demo(options, interrupted).run()
    took_s = round(time.monotonic() - began, 1)
    if options.json:
        print_json(record | {"took_s": took_s})
    else:
        print(f"\nreport {options.out / record['name'] / 'verdict.html'}, after {took_s:.0f} s\n\nnext")
        following = _following(options.spec, options.out)
        width = max(len(as_typed(command)) for command, _ in following)
        print("\n".join(f"  {as_typed(command):<{width}}  # {text}" for command, text in following))
    return 0


class _Demo:
    """The stages in order. Each prints one line; the first that does not hold is an error that names it."""

    def __init__(self, options: argparse.Namespace, interrupted: Any) -> None:
        self._options, self._interrupted = options, interrupted
        self._stage = _STAGES[0]
        self._begun = time.monotonic()
        self._record: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        from config.load import load_spec

        try:
            with self._running("check"):
                asked = load_spec(self._options.spec)
                spec = _packageable(asked)
            out = self._options.out / spec.name
            self._record = {"name": spec.name, "version": spec.version}
            self._say(f"{self._options.spec} is right: {spec.name} {spec.version}{_objective(spec)}")
            if spec is not asked:
                self._stage = ""
                self._say("no C++ compiler here, so the model is served uncompiled: apt-get install g++")
            self._package(spec, out)
            self._serve_and_load(spec, out)
            self._manifests(spec, out)
        except MarinaError as err:
            err.message = f"the demo stopped at `{self._stage}`: {err.message}"
            raise
        return self._record

    def _package(self, spec: Any, out: Path) -> None:
        from config.progress import Progress

        with self._running("package"):
            from archiver.package import package

            packaged = package(spec, out, progress=Progress(quiet=True))
        agreed = packaged.record.agreement
        judged = agreed.agreement is not None
        agreement = f"agrees with eager fp32 on {agreed.agreement:.2%}" if judged else f"agreement {agreed.text}"
        self._record["package"] = {"sha256": packaged.sha256, "bytes": packaged.bytes, "agreement": agreed.agreement}
        self._say(f"{out / packaged.mar}, {packaged.bytes / 1e6:.1f} MB, sha256 {packaged.sha256[:12]}…, {agreement}")

    def _serve_and_load(self, spec: Any, out: Path) -> None:
        from loadtest import started_server

        # Nobody has to learn of its end first.
        serving = spec.serving.model_copy(update={"drain_propagation_s": 0})
        served = spec.model_copy(update={"serving": serving})
        given = Path(tempfile.gettempdir(), "spec.json")
        given.write_text(served.model_dump_json(exclude_none=True), encoding="utf-8")
        command = [sys.executable, "-m", "server", str(given), "--mar", str(out / "model.mar")]
        self._enter("serve")
        with started_server(served, out / "server.log", command=command) as server:
            self._clear()
            self._record["ready_s"] = round(server.cold_start_s or 0, 2)
            answer = _ask(server.url, spec.name, out)
            self._say(f"ready in {server.cold_start_s:.1f} s at {server.url}, the sample is answered: {answer}")
            self._load(spec, out, server)

    def _load(self, spec: Any, out: Path, server: Any) -> None:
        from loadtest import RunOptions, TargetOptions, run_load_test

        rate = (spec.slo.throughput_rps if spec.slo else None) or _WITHOUT_OBJECTIVE_RPS
        how = RunOptions(rate=rate, warmup_s=_WARMUP_S, max_duration_s=_LONGEST_S)
        where = TargetOptions(out=out, url=server.url, supervisor=server.supervisor)
        with self._running("load"):
            outcome = run_load_test(spec, how, where, quiet=True)
        if self._interrupted():
            raise KeyboardInterrupt
        only, failed = outcome.runs[0], sum(outcome.runs[0].measurement.errors.values())
        self._say(
            f"{only.measurement.sent:,} requests at {rate:g}/s, open loop: {failed} "
            f"{'error' if failed == 1 else 'errors'}, p50 {_ms(only.response.p50)}, p99 {_ms(only.response.p99)}"
        )
        if only.pieces:
            self._say(
                f"answers come token by token: the first text after {_ms(only.pieces.ttft.p50)}, each further token "
                f"after {_ms(only.pieces.tpot.p50)} (medians), {only.pieces.tokens_per_s:.0f} tokens/s"
            )
        self._stage = "verdict"
        self._record["verdict"] = outcome.verdict.model_dump(mode="json")
        if outcome.verdict.status != "PASS":
            raise _NotPassed(outcome.verdict)
        self._say(f"PASS: {_headroom(outcome.verdict)}")

    def _manifests(self, spec: Any, out: Path) -> None:
        from k8s import all_rules, make_plan, verify_spec, write_manifests

        with self._running("manifests"):
            written = write_manifests(make_plan(spec, out), out)
        objects = sum(map(len, written.files.values()))
        self._record["manifests"] = {"folder": str(written.folder), "objects": objects}
        self._say(f"{objects} objects in {len(written.files)} files under {written.folder}")
        with self._running("verify"):
            verified = verify_spec(spec, out)
        findings, versions = verified.findings, verified.versions
        if errors := [finding for finding in findings if finding.level == "error"]:
            raise Refused("\n".join(map(str, errors)), hint=f"marina verify {self._options.spec}")
        self._record["verify"] = {"versions": list(versions), "warnings": [str(finding) for finding in findings]}
        known = f"{versions[0]} to {versions[-1]}"
        self._say(f"valid for Kubernetes {known}, and {len(all_rules())} more rules hold")
        self._stage = ""
        for finding in findings:
            self._say(f"warning {finding.rule}: {finding.text}")
            self._say(f"  {finding.hint}")

    @contextmanager
    def _running(self, stage: str) -> Iterator[None]:
        self._enter(stage)
        yield
        self._clear()

    def _enter(self, stage: str) -> None:
        self._stage, self._begun = stage, time.monotonic()
        if sys.stderr.isatty() and not self._options.quiet:
            print(f"{stage} …", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if sys.stderr.isatty() and not self._options.quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if not self._options.json:
            print(f"{self._stage:<10} {text}", flush=True)


class _NotPassed(Refused):
    """Raised when the load did not meet the objective, or could not be trusted."""

    def __init__(self, verdict: Any) -> None:
        reasons = "\n".join(f"  {reason.id}: {reason.text}" for reason in verdict.every_reason())
        again = "stop what else computes on this machine and try again"
        super().__init__(f"{verdict.status}\n{reasons}", hint=again if verdict.status == "INVALID" else None)
        self.exit_code = verdict.exit_code


def _packageable(spec: Any) -> Any:
    """The spec as this machine can package it: a newcomer may have nothing but Python."""
    from archiver.toolchain import find_compiler

    try:
        find_compiler()
    except ToolMissing:
        return spec.for_first_look()
    return spec


def _objective(spec: Any) -> str:
    if spec.slo is None:
        return ""
    rate = f" at {spec.slo.throughput_rps:g} requests/s" if spec.slo.throughput_rps else ""
    pieces = {"first text": spec.slo.ttft_p99_ms, "each further piece": spec.slo.itl_p99_ms}
    limits = {name: limit for name, limit in pieces.items() if limit} or {"p99": spec.slo.p99_ms}
    return "".join(f", {name} within {limit:g} ms" for name, limit in limits.items()) + rate


def _ask(url: str, name: str, out: Path) -> str:
    """The answer to the package's sample, shortened to a line."""
    import urllib.error  # not above: every verb would wait for it
    import urllib.request

    from config.record import read_package
    from loadtest import packaged_request

    sample = packaged_request(read_package(out), out, url)
    request = urllib.request.Request(sample.url, sample.body, {"Content-Type": sample.content_type})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
    except urllib.error.HTTPError as err:
        raise Refused(f"{name} answered its own sample with {err.code}: {err.read()[:200]!r}") from err
    with suppress(ValueError, LookupError, TypeError):
        data = json.loads(body)
        if "choices" in data:
            return f"`{' '.join(data['choices'][0]['text'].split())}`"
        best = data["top_labels"][0] if "top_labels" in data else f"class {data['top_indices'][0]}"
        return f"`{best}`, {data['top_probs'][0]:.1%} sure"
    return f"{len(body)} bytes"


def _headroom(verdict: Any) -> str:
    from loadtest import check_text

    parts = []
    for check in verdict.checks:
        left = ""
        if check.objective == "p99" and check.measured is not None:
            left = f", {1 - check.measured / check.limit:.0%} to spare"
        parts.append(check_text(check) + left)
    return "; ".join(parts)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms"


def _following(spec: Path, out: Path) -> list[tuple[str, str]]:
    given = "" if spec == DEFAULT_SPEC else f"{spec} "
    return [
        (f"marina serve {given}--out {out}", "a server, with a page to try it"),
        (f"marina calibrate {given}--out {out}", "the highest rate it can hold"),
        ("marina init --source torchvision:resnet18 mine", "the same with a model of yours"),
        ("marina doctor", "what is missing here for images and clusters"),
    ]
