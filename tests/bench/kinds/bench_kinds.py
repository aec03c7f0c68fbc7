"""Kinds of models that strangers bring, each from its file to a verdict, with nothing edited on the way.

    python tests/bench/kinds/bench_kinds.py [--only table --only mask] [--rate 100]

For each `marina init`, `package` and `loadtest`, which serves the package, as they are typed in an empty folder: what
each took, and what the verdict says. The exit code is 1 where one came to no PASS.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from sounds import save_classifier, save_ctc, save_whisper  # noqa: E402
from strangers import ARGUMENTS, save_checkpoint, save_program, write_files  # noqa: E402

# Models that listen, each with the most requests/s that two cores are asked for: a sound of the sample takes 2 s.
SOUNDS = {"whisper": (save_whisper, 2), "letters": (save_ctc, 10), "sounds": (save_classifier, 10)}
KINDS = ARGUMENTS | {kind: ["--source", "hf:sound"] for kind in SOUNDS}


def typed(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """What a command said, and the seconds it took."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "marina", *arguments], cwd=folder, capture_output=True, text=True)
    return done, time.perf_counter() - began


def way(kind: str, folder: Path, rate: float) -> tuple[str, bool]:
    """The line of a kind, and whether it passed."""
    took = []
    for verb in (("init", "mine", *KINDS[kind]), ("package", "mine/spec.yaml")):
        done, seconds = typed(folder, *verb, "--quiet")
        took.append(f"{verb[0]} {seconds:6.1f} s")
        if done.returncode != 0:
            return f"{'   '.join(took)}   {done.stderr.strip().splitlines()[0]}", False
    done, seconds = typed(folder, "loadtest", "mine/spec.yaml", "--rate", f"{rate:g}", "--quiet")
    verdict, *reasons = (done.stdout.strip() or done.stderr.strip() or "no message").splitlines()
    # What failed says why: a machine that others use is no fault of the model.
    why = "".join(f"\n    {line.strip()}" for line in reasons if done.returncode != 0)
    return f"{'   '.join(took)}   loadtest {seconds:6.1f} s   {verdict}{why}", done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--rate", type=float, default=100, help="requests/s; at 100 half a minute is enough")
    options = parser.parse_args()
    passed = []
    for kind in options.only or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            if kind in SOUNDS:
                save, rate = SOUNDS[kind]
                save(Path(folder) / "sound")
            else:
                rate = options.rate
                write_files(Path(folder))
                save_program(Path(folder))
                save_checkpoint(Path(folder))
            line, good = way(kind, Path(folder), min(rate, options.rate))
        passed.append(good)
        print(f"{kind:<20} {line}", flush=True)
    print(f"{sum(passed)} of {len(passed)} passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
