"""`ci`: packages a change and what it changes, compares both on this machine, and tells whoever reviews it."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marina.arguments import DEFECT, EXIT_CODES, add_out_option, add_verb, print_json, read_spec
from marina.ci_github import publish
from marina.config.duration import duration_s
from marina.config.errors import InputError, MarinaError
from marina.config.progress import Progress

# Where a job of a merge request says what it will be merged into.
_TARGETS = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
_STATUS = {0: "PASS", 1: "FAIL", 2: "FAIL", 3: "INVALID", DEFECT: "FAIL"}
_SAME = "The package is the same, byte for byte, so nothing was measured."


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        ci,
        "package a change, compare it with the branch that it is for, and say whether it is worse",
        "marina ci my/spec.yaml --base origin/main",
        "marina ci my/spec.yaml            # in a job for a pull or merge request, which says its branch",
        exit_codes=EXIT_CODES,
        as_json="the outcome",
    )
    add = add_out_option(added).add_argument
    text = "the commit or branch to compare with (default: the target of this pull or merge request; else a load test)"
    add("--base", metavar="REF", help=text)
    text = "measure for at most this long while undecided (default: that of `marina compare`)"
    add("--max-duration", metavar="TIME", type=duration_s, help=text)
    text = "also comment on the pull request and add a check, if GITHUB_TOKEN may write"
    add("--comment", action="store_true", help=text)
    text = "sign of the check and the comment, if a repository has several models (default: the spec's name)"
    add("--title", metavar="TEXT", help=text)


@dataclass
class Outcome:
    """What the job says."""

    name: str
    code: int = 0
    text: str = ""
    """In Markdown."""
    files: list[Path] = field(default_factory=list)

    @property
    def status(self) -> str:
        return _STATUS.get(self.code, "FAIL")

    def to_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "exit_code": self.code,
            "files": [str(file) for file in self.files],
        }


def ci(options: argparse.Namespace) -> int:
    from marina.config.record import write_text

    progress, folder = Progress(quiet=options.quiet), options.out
    try:
        name = read_spec(options).name
        outcome, folder = Outcome(options.title or name), folder / name
        _judge(options, name, options.base or _target(), outcome, progress)
    except MarinaError as err:
        # Whoever reviews the change reads it where they read a verdict.
        print(f"error: {err}", file=sys.stderr)
        outcome = Outcome(options.title or str(options.spec), err.exit_code, f"```text\n{err}\n```")
    summary = folder / "summary.md"
    text = f"### {outcome.name}: {outcome.status}\n\n{outcome.text}\n"
    write_text(summary, text)
    outcome.files.append(summary)
    _tell(outcome, text)
    if options.comment and (note := publish(outcome.name, outcome.status, text)):
        progress.say(f"note: {note}")
    if options.json:
        print_json(outcome.to_data())
    else:
        print(text)
    return outcome.code


def _judge(options: argparse.Namespace, name: str, base: str | None, outcome: Outcome, progress: Progress) -> None:
    """Packages both, and compares or tests them; what is wrong with the change becomes the outcome."""
    from marina.config.record import read_package

    folder: Path = options.out / name
    failed = _run("package", options.spec, "--out", options.out)
    if failed:
        outcome.code, outcome.text = failed.code, f"`marina package` failed:\n\n```text\n{failed.error}\n```"
        return
    why = None
    if base:
        old, why = _package_base(base, options, name, progress)
        if old and read_package(folder).sha256 == read_package(old.parent).sha256:
            outcome.text = f"**PASS** {_SAME}"
            return
        if old:
            longest = ["--max-duration", f"{options.max_duration:g}"] if options.max_duration else []
            _measure(outcome, folder, "compare", options, "--against", old, *longest)
            return
    _measure(outcome, folder, "loadtest", options)
    if why:
        outcome.text = f"Not compared with `{base}`: {why}\n\n{outcome.text}"


def _measure(outcome: Outcome, folder: Path, verb: str, options: argparse.Namespace, *more: object) -> None:
    """Runs `compare` or `loadtest`, whose record and pages become the outcome."""
    stem = "compare" if verb == "compare" else "verdict"
    failed = _run(verb, options.spec, "--out", options.out, *more)
    outcome.code = failed.code if failed else 0
    if failed and failed.code not in (1, 3):
        outcome.text = f"`marina {verb}` failed:\n\n```text\n{failed.error}\n```"
        return
    outcome.text = _markdown(verb, folder / f"{stem}.json")
    outcome.files += [folder / f"{stem}.{form}" for form in ("json", "xml", "html")]


def _markdown(verb: str, file: Path) -> str:
    from marina.config.measured import VerdictHead
    from marina.config.record import read_document
    from marina.loadtest.comparing import Comparison, comparison_markdown
    from marina.loadtest.reporting import verdict_markdown

    if verb == "compare":
        compared = read_document(file, Comparison, "marina compare")
        return comparison_markdown(compared) if compared else ""
    judged = read_document(file, VerdictHead, "marina loadtest")
    return verdict_markdown(judged) if judged else ""


@dataclass(frozen=True)
class _Failed:
    code: int
    error: str


def _run(verb: str, *arguments: object) -> _Failed | None:
    """Runs another verb in a process of its own, with its progress shown; what it said if it did not end with 0."""
    command = [sys.executable, "-m", "marina", verb, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace")
    assert process.stderr
    said = []
    for line in process.stderr:
        sys.stderr.write(line)
        said.append(line)
    code = process.wait()
    if not code:
        return None
    start = next((at for at, line in enumerate(said) if line.startswith("error: ")), max(0, len(said) - 20))
    return _Failed(code if code > 0 else DEFECT, "".join(said[start:]).strip())


def _target() -> str | None:
    """The branch that this job's pull or merge request is for; None outside of one."""
    name = next((os.environ[name] for name in _TARGETS if os.environ.get(name)), None)
    return f"origin/{name}" if name else None


def _package_base(
    base: str, options: argparse.Namespace, name: str, progress: Progress
) -> tuple[Path | None, str | None]:
    """The MAR of the spec in another commit, packaged by this Marina; or None, and why there is none."""
    spec = Path(options.spec).resolve()
    top = Path(_git(spec.parent, "rev-parse", "--show-toplevel"))
    commit = _commit(top, base)
    out = (options.out / f"{name}-base").resolve()
    inside = spec.relative_to(top.resolve())
    with progress.step(f"check out {base} ({commit[:10]})"), _worktree(top, commit, out / "tree") as tree:
        if not (tree / inside).is_file():
            return None, f"it has no `{inside}`"
        failed = _run("package", tree / inside, "--out", out)
    if failed:
        return None, f"it cannot be packaged:\n\n```text\n{failed.error}\n```"
    mars = list(out.glob("*/model.mar"))
    return next((mar for mar in mars if mar.parent.name == name), mars[0] if mars else None), None


def _commit(top: Path, base: str) -> str:
    """The commit of a branch, which is fetched first if the clone has only the change itself."""
    found = _try_git(top, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if found is None:
        remote, _, branch = base.partition("/")
        _try_git(top, "fetch", "--quiet", "--depth", "1", remote, f"+refs/heads/{branch}:refs/remotes/{base}")
        found = _try_git(top, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if found is None:
        raise InputError(f"`--base`: got `{base}`, which is no commit in {top}", hint="--base origin/main, or fetch it")
    return found


@contextmanager
def _worktree(top: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Another commit's files, beside the change's."""
    _try_git(top, "worktree", "remove", "--force", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _git(top, "worktree", "add", "--quiet", "--force", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _try_git(top, "worktree", "remove", "--force", str(folder))


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"`git {arguments[0]}` in {folder}: {reason}", hint="--base needs a clone with git")
    return done.stdout.strip()


def _try_git(folder: Path, *arguments: str) -> str | None:
    try:
        return _git(folder, *arguments)
    except InputError:
        return None


def _tell(outcome: Outcome, text: str) -> None:
    """Tells GitHub's runner, by the files and lines that it reads."""
    for variable, content in (
        ("GITHUB_STEP_SUMMARY", text + "\n"),
        ("GITHUB_OUTPUT", f"verdict={outcome.status}\nfolder={outcome.files[-1].parent}\n"),
    ):
        if file := os.environ.get(variable):
            with open(file, "a", encoding="utf-8") as stream:
                stream.write(content)
    if os.environ.get("GITHUB_ACTIONS") and outcome.code:
        kind = "warning" if outcome.code == 3 else "error"
        reasons = [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
        print(f"::{kind} title={outcome.name}: {outcome.status}::{'%0A'.join(reasons[:5])}", file=sys.stderr)
