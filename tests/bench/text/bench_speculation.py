"""What guesses are worth: an answer alone, with guesses and without, in turns, by the time of the processor.

    python tests/bench/text/bench_speculation.py [--quick] [--rounds 5] [--tokens 192] [--out build/bench-text]

The model has the shape of a Llama of 135 million weights in int8, and random ones: with `temperature: 0` it says the
same over and over, and with a seed and `temperature: 1` nothing twice. The tales model of the examples writes tales.
Both answers are the same, token for token, or the bench fails. `--quick` takes a smaller shape.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "bench" / "text")]

import torch  # noqa: E402
from bench_text import SHAPE, SMALL, write_model  # noqa: E402
from board import against, median, ratio_text  # noqa: E402

from marina.archiver.native import compile_decoder  # noqa: E402
from marina.handlers.generation import LIBRARY, Engine, Sampling, Token, make_engine  # noqa: E402
from marina.handlers.record import TextSpec  # noqa: E402

TALES = ROOT / "config" / "examples" / "tales" / "model"
SIDES = ("off", "auto")
TEXTS = {"that repeats": Sampling(temperature=0), "that does not": Sampling(temperature=1.0, seed=1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-text")
    args = parser.parse_args()
    torch.set_num_threads(1)
    random = write_model(args.out / ("small" if args.quick else "model"), SMALL if args.quick else SHAPE)
    for name, folder in (("random weights", random), ("tales", tales(args.out / "tales"))):
        engines = {side: make(folder, side) for side in SIDES}
        for text, sampling in TEXTS.items():
            compare(f"{name}, text {text}", engines, sampling, args)


def tales(folder: Path) -> Path:
    """The example's model, and the library of our engine beside it."""
    shutil.copytree(TALES, folder, dirs_exist_ok=True)
    compile_decoder("native", folder / LIBRARY)
    return folder


def make(folder: Path, speculation: str) -> Engine:
    settings = {"slots": 1, "waiting": 1, "prefill_chunk": 256, "max_tokens": 1, "flush_ms": 0, "step_ms": 1}
    text = TextSpec(folder="", engine="aot", context=512, ends=(), speculation=speculation, **settings)
    return make_engine(text, folder, "int8")


def compare(title: str, engines: dict[str, Engine], sampling: Sampling, args: argparse.Namespace) -> None:
    """Prints how many times faster an answer is with guesses."""
    seconds: dict[str, list[float]] = {side: [] for side in engines}
    steps: dict[str, int] = {}
    for _ in range(args.rounds):
        answers = {}
        for side, engine in engines.items():
            begun = time.process_time()
            answers[side], steps[side] = written(engine, sampling, args.tokens)
            seconds[side].append(time.process_time() - begun)
        if answers["off"] != answers["auto"]:
            sys.exit(f"{title}: the answer with guesses is another")
    faster = ratio_text(against(seconds["auto"], seconds["off"]))
    each = ", ".join(f"{side} {steps[side]} steps {median(seconds[side]) * 1000:,.0f} core-ms" for side in engines)
    print(f"{title}: {faster} times as fast ({args.tokens} tokens: {each})", flush=True)


def written(engine: Engine, sampling: Sampling, count: int) -> tuple[list[int], int]:
    """The tokens of one answer, and in how many steps."""
    engine.add("answer", list(range(20, 52)), sampling)
    tokens: list[int] = []
    steps = 0
    while len(tokens) < count:
        tokens += [token.token for token in engine.step() if isinstance(token, Token)]
        steps += 1
    engine.cancel("answer")
    return tokens[:count], steps


if __name__ == "__main__":
    main()
