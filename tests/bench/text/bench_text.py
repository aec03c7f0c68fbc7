"""What a step of writing and the reading of a prompt cost, of our engines and of others', in turns.

    python tests/bench/text/bench_text.py [--quick] [--only SIDE …] [--rounds 5] [--threads 1] [--out build/bench-text]

The model has the shape of a Llama of 135 million weights, and random ones. Each side runs in a process of its own;
OpenVINO GenAI and CTranslate2 come from a virtual environment that the first run makes below `--out`. The time of the
processor is what counts; that of the clock is of a quiet machine only. The limits are of this machine, measured in the
same run: weights of int8 read once a step, and fp32 products by torch, which whole numbers can pass. `--quick` takes a
smaller shape and our engines.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import torch  # noqa: E402
from board import Column, against, median, ratio_text, table, write_report  # noqa: E402

from archiver.native import compile_decoder  # noqa: E402
from archiver.torchvision_import import import_torchvision  # noqa: E402
from handlers.generation import LIBRARY  # noqa: E402

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
SMALL = SHAPE | {"vocab_size": 4096, "num_hidden_layers": 4}
BATCHES, STEPS, PROMPT = (1, 8, 32), 16, 512
OURS = ("aot:int8", "aot:bf16", "aot:fp32", "torch:bf16")
OTHERS = ("openvino", "ctranslate2", "transformers:bfloat16")
PEERS = ("openvino-genai", "ctranslate2", "optimum-intel", "nncf")
CONVERT = {
    "openvino": (
        "from optimum.intel import OVModelForCausalLM as M, OVWeightQuantizationConfig as Q; "
        "M.from_pretrained({model!r}, export=True, quantization_config=Q(bits=8), compile=False)"
        ".save_pretrained({out!r})"
    ),
    "ctranslate2": (
        "from ctranslate2.converters import TransformersConverter as T; "
        "T({model!r}).convert({out!r}, quantization='int8')"
    ),
}
COLUMNS = [
    *(Column(f"step_{batch}", f"core-ms at {batch}") for batch in BATCHES),
    Column("prefill", f"prefill {PROMPT}, core-ms", "{:,.0f}"),
    Column("first", "first token, ms", "{:,.0f}"),
    *(Column(f"tokens_{batch}", f"tokens/s at {batch}", "{:,.0f}") for batch in BATCHES),
    Column("of_reading", "of the limit at 1", "{:.2f}"),
    Column("of_products", "of the limit at 32", "{:.2f}"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=OURS + OTHERS, help="some of the sides")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-text")
    args = parser.parse_args()
    shape, sides = (SMALL, OURS) if args.quick else (SHAPE, OURS + OTHERS)
    sides = tuple(args.only or sides)
    model = write_model(args.out / ("small" if args.quick else "model"), shape)
    reading, products = limits()
    with ExitStack() as stack:
        running = {side: stack.enter_context(contestant(side, model, args)) for side in sides}
        measured: dict[str, list[dict[str, float]]] = {side: [] for side in running}
        for number in range(args.rounds or (1 if args.quick else 5)):
            for side, process in running.items():
                measured[side].append(measure(process))
                print(f"round {number + 1}, {side}: {measured[side][-1]}", file=sys.stderr, flush=True)
    weights = (model / "model.safetensors").stat().st_size / 2
    rows: dict[str, dict[str, float | None]] = {}
    for side, rounds in measured.items():
        row = {key: median([each[key] for each in rounds]) for key in rounds[0]}
        busy = {batch: (row[f"step_{batch}"] or 1) / 1000 for batch in BATCHES}
        row["of_reading"] = weights / reading / busy[1]
        row["of_products"] = 2 * weights * max(BATCHES) / products / busy[max(BATCHES)]
        rows[side] = row
    lead = f"Threads: {args.threads}. One reads {reading / 1e9:.1f} GB/s and computes {products / 1e9:.0f} GFLOP/s."
    print(table(rows, COLUMNS), lead, sep="\n")
    first, *others = measured
    for key in (f"step_{batch}" for batch in BATCHES):
        ours = [each[key] for each in measured[first]]
        for side in others:
            print(f"{side} / {first}, {key}: {ratio_text(against(ours, [each[key] for each in measured[side]]))}")
    record = {"rounds": measured, "threads": args.threads, "reading_bytes_s": reading, "products_s": products}
    bars = [(f"step_{batch}", f"Core-ms a step at {batch}") for batch in BATCHES]
    write_report(args.out, title="Text", lead=lead, record=record, rows=rows, columns=COLUMNS, bars=bars)


def write_model(folder: Path, shape: dict[str, object]) -> Path:
    """The model as `transformers` saves it, and the library of our engine beside it."""
    if not (folder / "model.safetensors").exists():
        import_torchvision()
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).save_pretrained(folder)
    compile_decoder("native", folder / LIBRARY)
    return folder


def converted(side: str, model: Path, out: Path) -> tuple[Path, Path]:
    """The Python that runs another's engine, and the model as that reads it."""
    python, folder = out / "venv" / "bin" / "python", out / side
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", out / "venv"], check=True)
        packages = next((out / "venv" / "lib").glob("python*")) / "site-packages"
        # torch is ours; what is installed beside it goes before.
        (packages / "ours.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PEERS], check=True)
    if not folder.exists():
        before = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        before += "from archiver.torchvision_import import import_torchvision as i; i(); "
        code = CONVERT[side].format(model=str(model), out=f"{folder}.new")
        subprocess.run([python, "-c", before + code], check=True, stdout=subprocess.DEVNULL)
        shutil.move(f"{folder}.new", folder)
    return python, folder


@contextmanager
def contestant(side: str, model: Path, args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A side that is ready; it waits for its turns."""
    python, folder = converted(side, model, args.out) if side in CONVERT else (Path(sys.executable), model)
    command = [str(python), str(Path(__file__).with_name("contestant.py")), side, str(folder), str(args.threads)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        print(f"{side}: ready after {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
        yield process
        assert process.stdin is not None
        process.stdin.close()


def measure(process: subprocess.Popen[str]) -> dict[str, float]:
    """One turn: milliseconds of the processor and of the clock, and tokens a second."""
    row: dict[str, float] = {}
    for batch in BATCHES:
        row[f"step_{batch}"], row[f"clock_{batch}"] = ask(process, f"decode {batch} {STEPS}")
        row[f"tokens_{batch}"] = batch * 1000 / row[f"clock_{batch}"]
    row["prefill"], row["first"] = ask(process, f"prefill {PROMPT}")
    return row


def ask(process: subprocess.Popen[str], question: str) -> tuple[float, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    processor, clock = process.stdout.readline().split()
    return float(processor) * 1000, float(clock) * 1000


def limits() -> tuple[float, float]:
    """Bytes that one thread reads a second, and its operations in fp32 products: the best of several tries."""
    torch.set_num_threads(1)
    block, square = torch.zeros(64_000_000), torch.ones(1024, 1024)
    reading, products = (min(_busy(act) for _ in range(7)) for act in (block.sum, lambda: square @ square))
    return block.nbytes / reading, 2 * 1024**3 / products


def _busy(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
