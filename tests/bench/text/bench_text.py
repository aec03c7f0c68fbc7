"""What a step of writing and the reading of a prompt cost, of our engines and of others', in turns.

    python tests/bench/text/bench_text.py [--quick] [--only SIDE …] [--rounds 5] [--threads 1] [--out build/bench-text]

The model has the shape of a Llama of 135 million weights, and random ones. Each side runs in a process of its own, with
large pages, as our server has them; OpenVINO GenAI, CTranslate2 and llama.cpp come into a virtual environment that the
first run makes below `--out`; a side that cannot be had is left out, with the reason. The time of the processor is what
counts; that of the clock is of a quiet machine only. The limits are of this machine, measured in the same run: weights
of int8 read once a step, and fp32 products by torch, which whole numbers can pass. `sampled` draws tokens with a
temperature of 1 and a `top_p` of 0.95; all other sides take the likeliest. `--quick` takes a smaller shape and
our engines.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import text_peers  # noqa: E402
import torch  # noqa: E402
from board import Column, against, median, ratio_text, table, write_report  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from marina.archiver.native import compile_decoder  # noqa: E402
from marina.archiver.torchvision_import import import_torchvision  # noqa: E402
from marina.config.record import write_json  # noqa: E402
from marina.handlers.generation.engines.compiled import LIBRARY  # noqa: E402

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
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
OURS = ("aot:int8", "aot:int8:sampled", "aot:int4", "aot:bf16", "aot:fp32", "torch:bf16")
OTHERS = ("openvino", "ctranslate2", "transformers:bfloat16", "llama.cpp")
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
        running = start(sides, model, args, stack)
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
    """The model, and the library of our engine beside it."""
    compile_decoder("native", write_weights(folder, shape) / LIBRARY)
    return folder


def write_weights(folder: Path, shape: dict[str, object]) -> Path:
    """The model as `transformers` saves it, with a tokenizer to which each token is a word: `w3 w4 w5`."""
    if not (folder / "model.safetensors").exists():
        import_torchvision()
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).save_pretrained(folder)
    if not (folder / "tokenizer.json").exists():
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL})
        names = {f"▁w{token}": token for token in range(len(SPECIAL), int(str(shape["vocab_size"])))}
        names |= {name: token for token, name in enumerate(SPECIAL.values())}
        tokenizer = Tokenizer(models.WordLevel(names, unk_token=SPECIAL["unk_token"]))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def start(
    sides: Sequence[str], model: Path, args: argparse.Namespace, stack: ExitStack
) -> dict[str, subprocess.Popen[str]]:
    """The sides that can be had; of others it is said why not."""
    running = {}
    for side in sides:
        try:
            running[side] = stack.enter_context(contestant(side, model, args))
        except (subprocess.CalledProcessError, RuntimeError, OSError) as err:
            print(f"{side}: left out: {' '.join(str(err).split())[-300:]}", file=sys.stderr, flush=True)
    if not running:
        sys.exit("no side is left")
    return running


@contextmanager
def contestant(side: str, model: Path, args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A side that is ready; it waits for its turns."""
    python, folder = text_peers.ready(side, model, args.out)
    command = [str(python), str(Path(__file__).with_name("contestant.py")), side, str(folder), str(args.threads)]
    environment, pipe = {**os.environ, **text_peers.LARGE_PAGES}, subprocess.PIPE
    begun = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        else:
            raise RuntimeError(f"its process ended with {process.wait()} before it was ready")
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
