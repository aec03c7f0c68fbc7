"""Pull requests judged by the action's script, each in a fresh clone: equal work, 30 % slower, wrong answers.

    python tests/bench/bench_ci.py [--equal 60] [--slow 20] [--wrong 10] [--into build/bench-ci.jsonl]

Beside each verdict stands what a fixed threshold says of the same run: p99 of the first turn of each server, worse if
it is over 1.2 times the old one. A run that is in the file already is not run again. Exit code 1 if an equal change was
called worse, or a wrong one was not."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from repository import Repository  # noqa: E402

KINDS = ("equal", "slow", "wrong")
PAUSE_MS, THRESHOLD = 30.0, 1.2


def judged(kind: str) -> dict[str, Any]:
    """One pull request from its clone to its verdict."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder), pause_ms=PAUSE_MS)
        repository.change(kind)
        outputs = Path(folder) / "outputs"
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPEC": "digits/spec.yaml",
            "GITHUB_BASE_REF": "main",
            "GITHUB_OUTPUT": str(outputs),
            "MAX_DURATION": "240",
        }
        script = str(ROOT / "docker/ci/judge.sh")
        done = subprocess.run([script], cwd=repository.folder, env=environment, capture_output=True, check=False)
        told = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        record = json.loads((repository.folder / "build/digits/compare.json").read_text())
    first = record["rounds"][0]
    p99 = {side: first[side]["response"]["p99"] for side in ("old", "new")}
    ratios = {figure["figure"]: figure["ratio"] for figure in record["figures"] if figure["ratio"]}
    worse = p99["old"] and p99["new"] and p99["new"] > THRESHOLD * p99["old"]
    return {
        "kind": kind,
        "verdict": told["verdict"],
        "red": done.returncode != 0,
        "threshold": "FAIL" if worse else "PASS",
        "rounds": len(record["rounds"]),
        "ratios": ratios,
        "reasons": [reason["id"] for reason in record["reasons"]],
    }


def main() -> int:
    """Prints a line for each kind."""
    parser = argparse.ArgumentParser()
    for kind, count in zip(KINDS, (60, 20, 10), strict=True):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--into", type=Path, default=ROOT / "build/bench-ci.jsonl")
    arguments = parser.parse_args()
    arguments.into.parent.mkdir(parents=True, exist_ok=True)
    arguments.into.touch()
    runs = [json.loads(line) for line in arguments.into.read_text().splitlines()]
    have = Counter(run["kind"] for run in runs)
    wanted = {kind: getattr(arguments, kind) for kind in KINDS}
    # In turns, so that a run that is cut off has some of each.
    for number in range(max(wanted.values())):
        for kind in KINDS:
            if have[kind] <= number < wanted[kind]:
                runs.append(judged(kind))
                with arguments.into.open("a") as stream:
                    stream.write(json.dumps(runs[-1]) + "\n")
                print(f"{number + 1:>3} {kind:<6} {runs[-1]['verdict']:<8} {runs[-1]['ratios']}", file=sys.stderr)
    print(f"{'':<8} {'runs':>5} {'PASS':>5} {'FAIL':>5} {'INVALID':>8} {'red':>5}   {'fixed threshold: FAIL':>22}")
    for kind in KINDS:
        mine = [run for run in runs if run["kind"] == kind]
        counts = Counter(run["verdict"] for run in mine)
        told = f"{counts['PASS']:>5} {counts['FAIL']:>5} {counts['INVALID']:>8} {sum(run['red'] for run in mine):>5}"
        print(f"{kind:<8} {len(mine):>5} {told}   {sum(run['threshold'] == 'FAIL' for run in mine):>22}")
    wrong = [run for run in runs if (run["kind"], run["red"]) in (("equal", True), ("wrong", False))]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
