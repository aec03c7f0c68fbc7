"""Models of libraries, each from what its users have to an answer, compared with the library's own.

    python tests/bench/kinds/library_kinds.py [--only 'hf ViT'] [--verdict]

Prints a line a kind: right, edited (right, with options that say what no file of the library says), asked or refused
(with the message), or wrong. Libraries are installed into `build/kinds/venv`, beside Marina's own packages. With
`--verdict`, each is compiled and load-tested as well. The exit code is 1 where an answer is wrong.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
PYTHON = ROOT / "build" / "kinds" / "venv" / "bin" / "python"
LIBRARIES = (
    "lightning",
    "monai",
    "peft",
    "segmentation-models-pytorch",
    "sentence-transformers",
    "timm",
    "torch-geometric",
)
# Answers are rounded, and pixels scaled by other code than the library's.
ALLOWED = 0.02


def install() -> None:
    """The libraries, in an environment that has Marina's own packages, too."""
    if (PYTHON.parent / "installed").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], check=True)
    packages = next((PYTHON.parents[1] / "lib").glob("python*")) / "site-packages"
    (packages / "marina.pth").write_text(f"{next(path for path in sys.path if path.endswith('site-packages'))}\n")
    words = [str(PYTHON), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*words, *LIBRARIES], check=True)
    (PYTHON.parent / "installed").touch()


def kinds() -> dict[str, object]:
    from library_pictures import KINDS as PICTURES
    from library_texts import KINDS as TEXTS

    return {**PICTURES, **TEXTS}


def run_one(name: str, *, verdict: bool) -> str:
    """The line of a kind: what it came to, and why."""
    from fakes import FakeContext, ask

    import marina
    from marina.handlers.torchvision_import import prepare_torchvision

    prepare_torchvision()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        kind = kinds()[name](Path(place))  # type: ignore[operator]
        said, began = io.StringIO(), time.perf_counter()
        packaging = ["package", "mine/spec.yaml", "--quiet", *([] if verdict else ["--quick"])]
        for words in (["init", "mine", "--quiet", *kind.arguments], packaging):
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                code = marina.main(words)
            if code != 0:
                return f"{'asked' if words[0] == 'init' else 'refused'}  {' | '.join(said.getvalue().split(chr(10)))}"
        with zipfile.ZipFile("build/mine/model.mar") as archive:
            archive.extractall("unpacked")
        sys.path.insert(0, "unpacked")
        handler = import_module("marina_entry").Service()
        handler.initialize(FakeContext(Path("unpacked").resolve()))
        (reply,) = ask(handler, kind.body, headers={"content-type": kind.content_type})
        if reply.status != 200:
            return f"refused  {reply.status} {reply.body!r}"
        off = kind.difference(reply)
        result = "wrong" if off > ALLOWED else "edited" if kind.edited else "right"
        line = f"{result}  {off:.2g} from the library's own, {time.perf_counter() - began:.0f} s"
        if verdict:
            typed = [sys.executable, "-m", "marina", "loadtest", "mine/spec.yaml", "--rate", "2", "--quiet"]
            done = subprocess.run(typed, capture_output=True, text=True)
            line += f", {(done.stdout or done.stderr).strip().partition(chr(10))[0]}"
        return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--verdict", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, verdict=options.verdict)), flush=True)
        return 0
    install()
    counted: dict[str, int] = {}
    names = subprocess.run(
        [
            PYTHON,
            "-c",
            f"import sys; sys.path[:0] = {[*sys.path[:2], str(Path(__file__).parent)]!r}\n"
            "import library_kinds\nprint('\\n'.join(library_kinds.kinds()))",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")[:-1]
    for name in options.only or names:
        words = [PYTHON, __file__, "--one", name, *(["--verdict"] if options.verdict else [])]
        # A folder of its own for what libraries fetch: none of them may need a network.
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        line = (
            json.loads(done.stdout.splitlines()[-1])
            if done.returncode == 0
            else f"failed  {done.stderr.strip().splitlines()[-1]}"
        )
        result, _, rest = line.partition("  ")
        counted[result] = counted.get(result, 0) + 1
        print(f"{name:<26} {result:<8} {rest}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(counted.items())))
    return 1 if {"wrong", "failed"} & counted.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
