"""`demo`: runs all stages once, from a spec to a verdict and verified manifests, on this machine, without a network."""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marina.arguments import BUILD, add_verb, print_result
from marina.cleanup import cleanup_on_exit
from marina.config.errors import MarinaError, Refused, ToolMissing
from marina.config.progress import replace_line
from marina.terminal import commands_text

# A busy machine may need several runs for a verdict, but a demo should not take for ever.
_WARMUP_S, _LONGEST_S = 3.0, 120.0
_WITHOUT_OBJECTIVE_RPS = 20.0
_DIGITS = Path("config/examples/digits/spec.yaml")
# The same, as it comes with the installation, for a demo outside of the repository.
_INSTALLED = Path(__file__).parents[1] / _DIGITS
_OUT = BUILD / "demo"


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        demo,
        "do every step once: check, package, serve, load, manifests, verify",
        "marina demo",
        "marina demo my/spec.yaml",
        spec=False,
    )
    text = f"spec of the model (default: {_DIGITS})"
    added.add_argument("spec", metavar="SPEC", type=Path, nargs="?", default=_DIGITS, help=text)
    # Not the usual folder, so that a demo leaves alone what was built and measured there.
    text = f"folder that holds NAME/model.mar and the records (default: {_OUT})"
    added.add_argument("--out", metavar="DIR", type=Path, default=_OUT, help=text)


def demo(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    if options.spec == _DIGITS and not _DIGITS.exists():
        options.spec = _INSTALLED
    with cleanup_on_exit() as interrupted:
        record = _Demo(options, interrupted).run()
    took_s = round(time.monotonic() - begin, 1)
    text = f"\nreport {options.out / record['name'] / 'verdict.html'}, after {took_s:.0f} s\n"
    commands = commands_text(_next_commands(options.spec, options.out))
    print_result(options, record | {"took_s": took_s}, text, commands)
    return 0


class _Demo:
    """Runs the stages in order. Each prints a line; the first one that fails ends the demo with an error that names it.
    A verdict that is not PASS ends it after the last stage: on a busy machine, the rest is still worth seeing."""

    def __init__(self, options: argparse.Namespace, interrupted: Any) -> None:
        self._options, self._interrupted = options, interrupted
        self._stage = "check"
        self._record: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        from marina.config.load import load_spec
        from marina.loadtest.judging import objective_of

        try:
            with self._running("check"):
                given = load_spec(self._options.spec)
                objective_of(given)  # a demo ends with a verdict, and packaging may take minutes
                spec = _packageable(given)
            out = self._options.out / spec.name
            self._record = {"name": spec.name, "version": spec.version}
            self._say(f"{self._options.spec} is valid: {spec.name} {spec.version}{_objective(spec)}")
            if spec is not given:
                self._stage = ""
                self._say("there is no C++ compiler, so the model is served uncompiled: apt-get install g++")
            self._package(spec, out)
            verdict = self._serve_and_load(spec, out)
            self._manifests(spec, out)
        except MarinaError as err:
            err.message = f"the demo stopped at `{self._stage}`: {err.message}"
            raise
        if verdict.status != "PASS":
            raise _NotPassed(verdict, out)
        return self._record

    def _package(self, spec: Any, out: Path) -> None:
        from marina.config.progress import Progress

        with self._running("package"):
            from marina.archiver.package import package

            packaged = package(spec, out, progress=Progress(quiet=True))
        agreement = packaged.record.agreement
        share = agreement.agreement
        text = f"agreement {agreement.text}" if share is None else f"agrees with eager fp32 on {share:.2%}"
        self._record["package"] = {"sha256": packaged.sha256, "bytes": packaged.bytes, "agreement": share}
        self._say(f"{out / packaged.mar}, {packaged.bytes / 1e6:.1f} MB, sha256 {packaged.sha256[:12]}…, {text}")

    def _serve_and_load(self, spec: Any, out: Path) -> Any:
        """The verdict."""
        from marina.loadtest.running import started_server

        file = Path(tempfile.gettempdir(), "spec.json")
        file.write_text(spec.model_dump_json(exclude_none=True), encoding="utf-8")
        command = [sys.executable, "-m", "marina.server", str(file), "--mar", str(out / "model.mar")]
        self._enter("serve")
        with started_server(spec, out / "server.log", command=command) as server:
            self._clear()
            self._record["ready_s"] = round(server.cold_start_s or 0, 2)
            answer = _ask(server.url, spec.name, out)
            self._say(f"ready in {server.cold_start_s:.1f} s at {server.url}, answer to the sample: {answer}")
            return self._load(spec, out, server)

    def _load(self, spec: Any, out: Path, server: Any) -> Any:
        from marina.loadtest.reporting import ms
        from marina.loadtest.running import RunOptions, TargetOptions, run_load_test

        rate = spec.slo.throughput_rps or _WITHOUT_OBJECTIVE_RPS
        how = RunOptions(rate=rate, warmup_s=_WARMUP_S, max_duration_s=_LONGEST_S)
        where = TargetOptions(out=out, started=server)
        with self._running("load"):
            outcome = run_load_test(spec, how, where, quiet=True)
        if self._interrupted():
            raise KeyboardInterrupt
        self._say(_load_text(outcome, rate))
        if pieces := outcome.together.pieces:
            self._say(
                f"answers come token by token: the first text after {ms(pieces.ttft.p50)}, each further token "
                f"after {ms(pieces.tpot.p50)} (medians), {pieces.tokens_per_s:.0f} tokens/s"
            )
        self._stage = "verdict"
        verdict = outcome.verdict
        self._record["verdict"] = verdict.model_dump(mode="json")
        self._say(f"PASS: {_headroom(verdict)}" if verdict.status == "PASS" else f"{verdict.status}, see below")
        return verdict

    def _manifests(self, spec: Any, out: Path) -> None:
        from marina.k8s.manifests import make_plan, write_manifests
        from marina.k8s.verify import all_rules, verify_spec

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
        self._say(f"valid for Kubernetes {versions[0]} to {versions[-1]}, and {len(all_rules())} more rules hold")
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
        self._stage = stage
        if sys.stderr.isatty() and not self._options.quiet:
            print(f"{stage} …", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if sys.stderr.isatty() and not self._options.quiet:
            replace_line("", sys.stderr)

    def _say(self, text: str) -> None:
        if not self._options.json:
            print(f"{self._stage:<10} {text}", flush=True)


class _NotPassed(Refused):
    """Raised if the load did not meet the objective, or if its measurement cannot be trusted."""

    def __init__(self, verdict: Any, out: Path) -> None:
        reasons = "".join(f"\n  {reason.id}: {reason.text}" for reason in verdict.every_reason())
        hint = "if other programs use this machine's cores, stop them and try again"
        super().__init__(f"the verdict is {verdict.status}, report {out / 'verdict.html'}{reasons}", hint=hint)
        self.exit_code = verdict.exit_code


def _packageable(spec: Any) -> Any:
    """The spec, changed so that nothing is compiled if there is no compiler: a newcomer may have only Python."""
    from marina.archiver.toolchain import find_compiler

    try:
        find_compiler()
    except ToolMissing:
        return spec.uncompiled()
    return spec


def _objective(spec: Any) -> str:
    rate = f" at {spec.slo.throughput_rps:g} requests/s" if spec.slo.throughput_rps else ""
    pieces = {"first text": spec.slo.ttft_p99_ms, "each further piece": spec.slo.itl_p99_ms}
    limits = {name: limit for name, limit in pieces.items() if limit} or {"p99": spec.slo.p99_ms}
    return "".join(f", {name} within {limit:g} ms" for name, limit in limits.items()) + rate


def _ask(url: str, name: str, out: Path) -> str:
    """The answer to the package's sample, shortened to a line."""
    import urllib.error  # here, because the import would slow down every verb
    import urllib.request

    from marina.config.record import read_package
    from marina.loadtest.sending import packaged_request

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


def _load_text(outcome: Any, rate: float) -> str:
    """What was sent and how it was answered, in all runs together: a verdict may have needed more than one."""
    from marina.loadtest.reporting import ms

    measured, count = outcome.together, len(outcome.runs)
    failed = sum(measured.measurement.errors.values())
    return (
        f"{measured.measurement.sent:,} requests at {rate:g}/s{f' in {count} runs' if count > 1 else ''}, open loop: "
        f"{failed} {'error' if failed == 1 else 'errors'}, p50 {ms(measured.response.p50)}, "
        f"p99 {ms(measured.response.p99)}"
    )


def _headroom(verdict: Any) -> str:
    from marina.loadtest.reporting import check_text

    parts = []
    for check in verdict.checks:
        left = ""
        if check.objective == "p99" and check.measured is not None:
            left = f", {1 - check.measured / check.limit:.0%} to spare"
        parts.append(check_text(check) + left)
    return "; ".join(parts)


def _next_commands(spec: Path, out: Path) -> list[tuple[str, str]]:
    words = shlex.join([str(spec), "--out", str(out)])
    return [
        (f"marina serve {words}", "a server, with a page to try it"),
        (f"marina calibrate {words}", "the highest rate that it can hold"),
        ("marina init --source torchvision:resnet18 mine", "the same with a model of your own"),
        ("marina doctor", "what this machine lacks for images and clusters"),
    ]
