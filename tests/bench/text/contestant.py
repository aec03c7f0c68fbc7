"""One side of `bench_text.py`, in a process of its own: it loads a model, then measures what each line of its input
names, `decode BATCH STEPS` or `prefill TOKENS`, and writes the seconds of the processor and of the clock."""

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


def ours(folder: Path, threads: int, kind: str, precision: str, choice: str = "greedy") -> Generate:
    sys.path.insert(0, str(ROOT))
    import torch

    from marina.handlers.generation.engine import Sampling
    from marina.handlers.generation.engines import make_engine
    from marina.handlers.record import TextSpec

    torch.set_num_threads(threads)
    settings: dict[str, object] = {"slots": 32, "waiting": 1, "prefill_chunk": 256, "max_tokens": 1}
    # What is measured is a step for a token.
    settings |= {"flush_ms": 0, "step_ms": 1, "speculation": "off"}
    sampling = Sampling(temperature=0) if choice == "greedy" else Sampling(temperature=1.0, top_p=0.95, seed=1)
    engine = make_engine(TextSpec(folder="", engine=kind, context=640, ends=(), **settings), folder, precision)

    def generate(prompts: list[list[int]], count: int) -> None:
        left = {str(index): count for index in range(len(prompts))}
        for name, prompt in zip(left, prompts, strict=True):
            engine.add(name, prompt, sampling)
        while left:
            for token in engine.step():
                if token.sequence in left:
                    left[token.sequence] -= 1
                    if not left[token.sequence]:
                        del left[token.sequence]
                        engine.cancel(token.sequence)

    return generate


def transformers_model(folder: Path, threads: int, precision: str) -> Any:
    sys.path.insert(0, str(ROOT))
    from marina.archiver.torchvision_import import import_torchvision

    import_torchvision()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision)).eval()


def transformers_options(count: int) -> dict[str, Any]:
    return {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}


def transformers(folder: Path, threads: int, precision: str) -> Generate:
    model = transformers_model(folder, threads, precision)
    import torch

    def generate(prompts: list[list[int]], count: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **transformers_options(count))

    return generate


def openvino_pipeline(folder: Path, threads: int) -> Any:
    import openvino_genai

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size, scheduling.max_num_seqs, scheduling.max_num_batched_tokens = 1, 64, 256
    scheduling.dynamic_split_fuse, scheduling.enable_prefix_caching = True, False
    settings = {"INFERENCE_NUM_THREADS": threads}
    return openvino_genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU", settings)


def openvino_config(count: int) -> Any:
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    return config


def openvino_tensors(prompts: list[list[int]]) -> list[Any]:
    import numpy
    import openvino

    return [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]


def openvino(folder: Path, threads: int) -> Generate:
    pipeline = openvino_pipeline(folder, threads)

    def generate(prompts: list[list[int]], count: int) -> None:
        pipeline.generate(openvino_tensors(prompts), [openvino_config(count)] * len(prompts))

    return generate


def ctranslate2_generator(folder: Path, threads: int) -> tuple[Any, list[str]]:
    """With the names of its tokens."""
    import json

    import ctranslate2

    names = json.loads((folder / "vocabulary.json").read_text())
    return ctranslate2.Generator(str(folder), compute_type="int8", inter_threads=1, intra_threads=threads), names


def ctranslate2_options(batch: int, count: int) -> dict[str, Any]:
    lengths = {"max_length": count, "min_length": count}
    return lengths | {"max_batch_size": batch, "sampling_topk": 1, "include_prompt_in_result": False}


def ctranslate2(folder: Path, threads: int) -> Generate:
    generator, names = ctranslate2_generator(folder, threads)

    def generate(prompts: list[list[int]], count: int) -> None:
        texts = [[names[token] for token in prompt] for prompt in prompts]
        generator.generate_batch(texts, **ctranslate2_options(len(texts), count))

    return generate


def llama_cpp(folder: Path, threads: int) -> Generate:
    sys.path.insert(0, str(folder.parent / "llama.cpp" / "source"))
    import llama_cpp as library
    import numpy

    model = library.llama_model_load_from_file(bytes(folder / "model.gguf"), library.llama_model_default_params())
    settings = library.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.n_batch, settings.n_ubatch = 32 * 640, 32, 2048, 512
    settings.n_threads = settings.n_threads_batch = threads
    context = library.llama_init_from_model(model, settings)
    batch = library.llama_batch_init(settings.n_batch, 0, 1)
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))

    def step(rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Of rows of a token, its place, its answer and whether it is the last: the next tokens of those."""
        batch.n_tokens = len(rows)
        for row, (token, place, answer, is_last) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, place, is_last
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, answer
        if library.llama_decode(context, batch):
            raise RuntimeError("llama.cpp cannot compute a step")
        wanted = [library.llama_get_logits_ith(context, row) for row, (*_, is_last) in enumerate(rows) if is_last]
        return [int(numpy.ctypeslib.as_array(scores, (vocabulary,)).argmax()) for scores in wanted]

    def generate(prompts: list[list[int]], count: int) -> None:
        library.llama_memory_clear(library.llama_get_memory(context), True)
        length, answers = len(prompts[0]), range(len(prompts))
        places = range(length)
        tokens = step(
            [(prompts[each][place], place, each, place == length - 1) for each in answers for place in places]
        )
        for place in range(length, length + count - 1):
            tokens = step([(tokens[each], place, each, True) for each in answers])

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
    generate: Generate = globals()[maker.replace(".", "_")](folder, threads, *arguments)
    seconds(generate, 2, PROMPT, 3)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "prefill":
            spent = seconds(generate, 1, int(numbers[0]), 1)
        else:
            batch, steps = map(int, numbers)
            # Others had the caches meanwhile: who begins cold would have the difference too small.
            seconds(generate, batch, PROMPT, 2)
            # Answers of two lengths: their difference is steps alone.
            short, long = seconds(generate, batch, PROMPT, 2), seconds(generate, batch, PROMPT, steps + 2)
            spent = ((long[0] - short[0]) / steps, (long[1] - short[1]) / steps)
        print(*spent, flush=True)


if __name__ == "__main__":
    main()
