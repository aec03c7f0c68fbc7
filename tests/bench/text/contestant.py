"""One side of `bench_text.py`, in a process of its own: it loads a model, then measures what each line of its input
names, `decode BATCH STEPS` or `prefill TOKENS`, and writes the seconds of the processor and of the clock."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PROMPT = 64
# Writes so many answers of so many tokens to prompts of so many.
Generate = Callable[[list[list[int]], int], Any]


def ours(folder: Path, threads: int, kind: str, precision: str) -> Generate:
    sys.path.insert(0, str(ROOT))
    import torch

    from handlers.generation import Sampling, make_engine
    from handlers.record import TextSpec

    torch.set_num_threads(threads)
    settings: dict[str, object] = {"slots": 32, "waiting": 1, "prefill_chunk": 256, "max_tokens": 1}
    # What is measured is a step for a token.
    settings |= {"flush_ms": 0, "step_ms": 1, "speculation": "off"}
    engine = make_engine(TextSpec(folder="", engine=kind, context=640, ends=(), **settings), folder, precision)

    def generate(prompts: list[list[int]], count: int) -> None:
        left = {str(index): count for index in range(len(prompts))}
        for name, prompt in zip(left, prompts, strict=True):
            engine.add(name, prompt, Sampling(temperature=0))
        while left:
            for token in engine.step():
                if token.sequence in left:
                    left[token.sequence] -= 1
                    if not left[token.sequence]:
                        del left[token.sequence]
                        engine.cancel(token.sequence)

    return generate


def transformers(folder: Path, threads: int, precision: str) -> Generate:
    sys.path.insert(0, str(ROOT))
    from archiver.torchvision_import import import_torchvision

    import_torchvision()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision)).eval()

    def generate(prompts: list[list[int]], count: int) -> None:
        ids = torch.tensor(prompts)
        options = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return generate


def openvino(folder: Path, threads: int) -> Generate:
    import numpy
    import openvino
    import openvino_genai

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size, scheduling.max_num_seqs, scheduling.max_num_batched_tokens = 1, 64, 256
    scheduling.dynamic_split_fuse, scheduling.enable_prefix_caching = True, False
    settings = {"INFERENCE_NUM_THREADS": threads}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU", settings)

    def generate(prompts: list[list[int]], count: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        ids = [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
        pipeline.generate(ids, [config] * len(ids))

    return generate


def ctranslate2(folder: Path, threads: int) -> Generate:
    import json

    import ctranslate2

    names = json.loads((folder / "vocabulary.json").read_text())
    generator = ctranslate2.Generator(str(folder), compute_type="int8", inter_threads=1, intra_threads=threads)

    def generate(prompts: list[list[int]], count: int) -> None:
        texts = [[names[token] for token in prompt] for prompt in prompts]
        options = {"max_length": count, "min_length": count, "sampling_topk": 1, "include_prompt_in_result": False}
        generator.generate_batch(texts, max_batch_size=len(texts), **options)

    return generate


def seconds(generate: Generate, batch: int, prompt: int, count: int) -> tuple[float, float]:
    """Of the processor, and of the clock."""
    prompts = [[random.randrange(5, 2000) for _ in range(prompt)] for _ in range(batch)]
    processor, clock = time.process_time(), time.perf_counter()
    generate(prompts, count)
    return time.process_time() - processor, time.perf_counter() - clock


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    maker, *arguments = name.split(":")
    if maker in ("aot", "torch"):
        arguments, maker = [maker, *arguments], "ours"
    generate: Generate = globals()[maker](folder, threads, *arguments)
    seconds(generate, 2, PROMPT, 3)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "prefill":
            spent = seconds(generate, 1, int(numbers[0]), 1)
        else:
            batch, steps = map(int, numbers)
            # Answers of two lengths: their difference is steps alone.
            short, long = seconds(generate, batch, PROMPT, 2), seconds(generate, batch, PROMPT, steps + 2)
            spent = ((long[0] - short[0]) / steps, (long[1] - short[1]) / steps)
        print(*spent, flush=True)


if __name__ == "__main__":
    main()
