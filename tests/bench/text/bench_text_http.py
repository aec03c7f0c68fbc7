"""Language models over HTTP: tokens a second of 1, 8 and 32 streams at once and the time to the first text of a prompt
of 512 tokens, of our server and of others', in turns.

    python tests/bench/text/bench_text_http.py [--quick] [--only SIDE …] [--rounds 5] [--threads 1]

The model is that of `bench_text.py`: the shape of a Llama of 135 million weights, and random ones. Ours is the whole
thing: a package in int8, the supervisor and TorchServe, and OpenAI's API; its guesses are off, because a model
that has learnt nothing repeats itself, and guesses would always be right. llama.cpp has its own server, `llama-server`,
with weights of int8. OpenVINO GenAI and CTranslate2 (int8) and `transformers` (bf16) come without a server for such
streams and get the one of `stream_server.py`, which does much less than ours: that is a favour to them.
`transformers-serve` is the server that `transformers` has, with continuous batching: with 32 streams it takes twice the
CPU time of `transformers` here, so it only runs where `--only` names it.

One client sends the same prompts to each side (`stream_client.py`). The other sides stand still meanwhile. Tokens a
second are all tokens of the answers by the time from the first request to the last event, so that reading prompts of 64
tokens counts. CPU time is that of all processes of a server. The limits are of this machine, measured in the same run,
one for each thread: at 1, weights of int8 read once for each token; at 32, fp32 products of prompts and answers, which
whole numbers can pass. `--quick` takes a smaller shape. A side that cannot be had is left out, and the bench says why.
"""

import argparse
import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / each) for each in ("", "e2e", "bench"))]

import process_tree  # noqa: E402
from bench_text import BATCHES, PROMPT, SHAPE, SMALL, limits, write_weights  # noqa: E402
from board import Column, against, median, ratio_text, table, write_report  # noqa: E402
from contestants import Contestant, Started, command, kit  # noqa: E402
from packages import built_once, home  # noqa: E402
from rounds import alone  # noqa: E402
from specs import make_spec  # noqa: E402
from text_peers import LARGE_PAGES, ready, serving_packages  # noqa: E402

from marina.archiver.language_model import TUNED  # noqa: E402
from marina.archiver.package import package  # noqa: E402
from marina.config.errors import MarinaError  # noqa: E402
from marina.config.ports import free_port_base  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.loadtest.sending import LoadRequest  # noqa: E402

SIDES = ("marina", "openvino", "ctranslate2", "transformers", "llama.cpp")
ON_REQUEST = ("transformers-serve",)
# Tokens of the prompts of the streams, and of all answers; answers to the long prompt are short.
SHORT, ANSWER, BEGINNING = 64, 128, 4
CONTEXT, FIRSTS = 1024, 5
COLUMNS = [
    *(Column(f"tokens_{streams}", f"tokens/s at {streams}") for streams in BATCHES),
    Column("first", f"first text of {PROMPT}, ms", "{:,.0f}"),
    *(Column(f"cpu_{streams}", f"CPU ms a token at {streams}") for streams in BATCHES),
    Column("of_reading", "of the limit at 1", "{:.2f}"),
    Column("of_products", "of the limit at 32", "{:.2f}"),
    Column("same", "begins like the first side", "{:.0%}"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SIDES + ON_REQUEST, default=list(SIDES), help="some of the sides")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-text")
    args = parser.parse_args()
    process_tree.unwind_on_sigterm()
    args.out = args.out.resolve()
    model = write_weights(args.out / ("small" if args.quick else "model"), SMALL if args.quick else SHAPE)
    reading, products = limits()
    with ExitStack() as stack:
        running, missing = start(model, args, stack)
        client = stack.enter_context(a_client())
        measured: dict[str, list[dict[str, Any]]] = {side: [] for side in running}
        for number in range(args.rounds):
            # Who goes first has the machine as another left it.
            names = list(measured)
            for side in names[number % len(names) :] + names[: number % len(names)]:
                try:
                    with alone(running[side], running):
                        measured[side].append(measure(side, running[side], model, client, seed=number))
                except RuntimeError as err:
                    leave_out(side, err, missing)
                    del measured[side]
                else:
                    print(f"round {number + 1}, {side}: {told(measured[side][-1])}", file=sys.stderr, flush=True)
    if not measured:
        sys.exit("no side is left")
    weights = (model / "model.safetensors").stat().st_size / 2
    limit_of = {"of_reading": reading * args.threads / weights, "of_products": products * args.threads / 2 / weights}
    rows = {side: summary(rounds, measured, limit_of) for side, rounds in measured.items()}
    report(rows, measured, missing, args, limit_of)


def start(model: Path, args: argparse.Namespace, stack: ExitStack) -> tuple[dict[str, Started], dict[str, str]]:
    """The servers by side, and why others are missing."""
    running: dict[str, Started] = {}
    missing: dict[str, str] = {}
    for side in args.only:
        try:
            running[side] = stack.enter_context(contestant(side, model, args)())
        except (MarinaError, RuntimeError, OSError, subprocess.CalledProcessError, ImportError) as err:
            leave_out(side, err, missing)
        else:
            print(f"{side}: started in {running[side].start_s:.1f} s", file=sys.stderr, flush=True)
    return running, missing


def leave_out(side: str, err: Exception, missing: dict[str, str]) -> None:
    missing[side] = " ".join(str(err).split())[-300:]
    print(f"{side}: left out: {missing[side]}", file=sys.stderr, flush=True)


def contestant(side: str, model: Path, args: argparse.Namespace) -> Contestant:
    """How a side is started, with what is installed, converted or packaged before."""
    if side == "marina":
        return marina(model, args.threads)
    port, folder = free_port_base(), args.out / "http" / side
    folder.mkdir(parents=True, exist_ok=True)
    url, threads = f"http://127.0.0.1:{port}/v1/completions", str(args.threads)
    environment = {"OMP_NUM_THREADS": threads, **LARGE_PAGES}
    python, converted = ready(side, model, args.out)
    if side == "llama.cpp":
        most = max(BATCHES)
        words = [str(args.out / side / "build" / "bin" / "llama-server"), "--model", str(converted / "model.gguf")]
        words += ["--port", str(port), "--threads", threads, "--threads-batch", threads, "--cache-ram", "0"]
        words += ["--parallel", str(most), "--ctx-size", str(most * CONTEXT), "--offline", "--no-webui"]
    elif side == "transformers-serve":
        words = [str(python), "-m", "transformers.cli.transformers", "serve", str(model), "--continuous-batching"]
        words += ["--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "256"]
        words += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
        environment |= {"PYTHONPATH": str(serving_packages(args.out)), "HF_HUB_OFFLINE": "1"}
    else:
        server = Path(__file__).with_name("stream_server.py")
        words = [str(python), str(server), side, str(converted), threads, str(port)]
    body = json.dumps(wish(side, [300] * SHORT, 2, model)).encode()
    request = LoadRequest(url=url, body=base64.b64encode(body), content_type="application/json")
    return command(side, words, request=request, environment=environment, folder=folder)


def marina(model: Path, threads: int) -> Contestant:
    """Our server, with a package that is made anew when its sources have changed."""
    text = {"context": CONTEXT, "slots": max(BATCHES), "max_tokens": ANSWER}
    section: dict[str, Any] = {"source": f"hf:{model}", "handler": "text", "precision": "int8", "compile": "aot"}
    # Which of its tokens is the likeliest is by chance, where the model has learnt nothing.
    section |= {"min_agreement": 0}
    serving = {"threads": threads, "drain_propagation_s": 0, "access_log": "off"}
    spec = make_spec({"model": section, "text": text, "serving": serving})
    with patch.dict(TUNED, speculation="off"):
        folder = built_once(home() / f"random-{model.name}", lambda out: package(spec, out, progress=Progress()))

    def request(url: str) -> LoadRequest:
        body = json.dumps(wish("marina", [300] * SHORT, 2, model)).encode()
        return LoadRequest(
            url=f"{url}/1.0/v1/completions", body=base64.b64encode(body), content_type="application/json"
        )

    return kit("marina", spec, folder / "model.mar", request=request)


def wish(side: str, prompt: list[int], tokens: int, model: Path) -> dict[str, Any]:
    """What is sent to a side; the server of `transformers` takes texts only, and nothing that OpenAI does not know."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    if side == "transformers-serve":
        return body | {"model": str(model), "prompt": " ".join(f"w{token}" for token in prompt)}
    return body | {"ignore_eos": True, "stream_options": {"include_usage": True}}


@contextmanager
def a_client() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("stream_client.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def measure(side: str, started: Started, model: Path, client: subprocess.Popen[str], seed: int) -> dict[str, Any]:
    """One turn."""
    dice, row = random.Random(seed), dict[str, Any]()
    vocabulary = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]

    def ask(streams: int, prompt: int, tokens: int) -> list[dict[str, Any]]:
        prompts = [[dice.randrange(300, vocabulary) for _ in range(prompt)] for _ in range(streams)]
        address = urlsplit(started.request.url)
        bodies = [wish(side, each, tokens, model) for each in prompts]
        question = {"port": address.port, "path": address.path, "bodies": bodies}
        client.stdin.write(json.dumps(question) + "\n")
        client.stdin.flush()
        seen = json.loads(client.stdout.readline())
        if errors := [each["error"] for each in seen if "error" in each]:
            raise RuntimeError(f"{side}: {len(errors)} of {streams} streams failed: {errors[0]}")
        return seen

    # A server that stood still looks around first.
    ask(2, SHORT, BEGINNING)
    for streams in BATCHES:
        spent_s = process_tree.cpu_s(started.pid)
        seen = ask(streams, SHORT, ANSWER)
        spent_s = process_tree.cpu_s(started.pid) - spent_s
        tokens = sum(each["tokens"] for each in seen)
        took_s = max(each["ended"] for each in seen) - min(each["sent"] for each in seen)
        row |= {f"tokens_{streams}": tokens / took_s, f"cpu_{streams}": spent_s * 1000 / tokens}
        row[f"written_{streams}"] = tokens
    firsts = [ask(1, PROMPT, BEGINNING)[0] for _ in range(FIRSTS)]
    row["first"] = (median([each["first"] - each["sent"] for each in firsts]) or 0) * 1000
    return row | {"words": [each["word"] for each in (*seen, *firsts)]}


def told(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value:,.4g}" for key, value in row.items() if key != "words")


def summary(
    rounds: list[dict[str, Any]], measured: Mapping[str, list[dict[str, Any]]], limit_of: Mapping[str, float]
) -> dict[str, Any]:
    """The medians of a side's rounds, its share of the limits, and how many of its answers begin like the first
    side's: all compute the same weights, each rounded in another way."""
    first = next(iter(measured.values()))
    row: dict[str, Any] = {key: median([each[key] for each in rounds]) for key in rounds[0] if key != "words"}
    row["of_reading"] = row["tokens_1"] / limit_of["of_reading"]
    row["of_products"] = row[f"tokens_{max(BATCHES)}"] * (SHORT + ANSWER) / ANSWER / limit_of["of_products"]
    pairs = [
        pair
        for ours, theirs in zip(first, rounds, strict=True)
        for pair in zip(ours["words"], theirs["words"], strict=True)
    ]
    return row | {"same": sum(ours == theirs for ours, theirs in pairs) / len(pairs)}


def report(
    rows: dict[str, dict[str, Any]],
    measured: Mapping[str, list[dict[str, Any]]],
    missing: Mapping[str, str],
    args: argparse.Namespace,
    limit_of: Mapping[str, float],
) -> None:
    lead = f"Threads of each side: {args.threads}. Load of the machine: {os.getloadavg()[0]:.1f}."
    if missing:
        lead += f" Left out: {', '.join(missing)}."
    print(table(rows, COLUMNS), lead, sep="\n")
    first, *others = measured
    for key in (*(f"tokens_{streams}" for streams in BATCHES), "first"):
        ours = [each[key] for each in measured[first]]
        for side in others:
            print(f"{side} / {first}, {key}: {ratio_text(against(ours, [each[key] for each in measured[side]]))}")
    record = {"rounds": measured, "missing": missing, "threads": args.threads, "limits_tokens_s": limit_of}
    bars = [(f"tokens_{streams}", f"Tokens/s of {streams} streams") for streams in BATCHES]
    bars.append(("first", f"First text of a prompt of {PROMPT} tokens, ms"))
    folder = args.out / "http"
    write_report(folder, title="Text over HTTP", lead=lead, record=record, rows=rows, columns=COLUMNS, bars=bars)


if __name__ == "__main__":
    main()
