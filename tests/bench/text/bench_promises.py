"""What a service of text promises, each measured: prompts that begin alike, who goes first, and a Redis that dies.

    python tests/bench/text/bench_promises.py [prefix] [priorities] [redis] [--rounds 5] [--out build/bench-text]

`prefix`: the processor's time to the first token of a prompt whose first 512 tokens were read before, of that of one
read whole; the shape of a Llama of 135 million weights, in int8. `priorities`: through TorchServe, from an engine with
steps of a set time, a batch that asks for three times what there is, and interactive requests beside it: their time to
the first text, alone and then. `redis`: a served model whose answers are kept in a Redis that is killed while clients
ask; exit code 1 where one of them got no answer.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / each) for each in ("", "e2e", "bench", "bench/text"))]

import torch  # noqa: E402
from bench_text import SHAPE, write_model  # noqa: E402
from board import against, median, ratio_text  # noqa: E402
from packages import TALES_VARIANTS, packaged_tales  # noqa: E402
from redis_server import PASSWORD, redis_server  # noqa: E402
from running import Running, running  # noqa: E402
from specs import tales_spec  # noqa: E402
from streams import Stream, stream  # noqa: E402

from marina.archiver.language_model import TUNED  # noqa: E402
from marina.archiver.package import package  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.handlers.generation import Engine, Sampling, make_engine  # noqa: E402
from marina.handlers.record import TextSpec  # noqa: E402

PATH = "/predictions/tales/1.0/v1/completions"
SHARED, OWN = 512, 16
# Of the priorities: slots, tokens of an answer, its step, and seconds of a load.
SLOTS, TOKENS, STEP_MS, LOAD_S = 8, 40, 20, 20
INTERACTIVE_S, BATCH_TIMES = 1.0, 3
ANSWERS, CLIENTS = 600, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("promises", nargs="*", choices=[*PROMISES, []], help="all of them without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-text")
    args = parser.parse_args()
    return max(PROMISES[name](args) for name in args.promises or PROMISES)


def prefix(args: argparse.Namespace) -> int:
    """A prompt read whole, and one whose beginning a slot holds."""
    torch.set_num_threads(1)
    settings = {"slots": 2, "waiting": 1, "prefill_chunk": 256, "max_tokens": 1, "flush_ms": 0, "step_ms": 1}
    text = TextSpec(folder="", engine="aot", context=640, ends=(), speculation="off", **settings)
    engine, dice = make_engine(text, write_model(args.out / "model", SHAPE), "int8"), random.Random(1)
    cold, warm = [], []
    for _ in range(args.rounds):
        shared = [dice.randrange(5, 2000) for _ in range(SHARED)]
        cold.append(_first_token_s(engine, shared + [dice.randrange(5, 2000) for _ in range(OWN)]))
        warm.append(_first_token_s(engine, shared + [dice.randrange(5, 2000) for _ in range(OWN)]))
    both = f"{median(cold) * 1000:,.0f} and {median(warm) * 1000:,.0f} core-ms"
    print(f"prefix: {ratio_text(against(cold, warm))} of the time to the first token of a prompt read whole: {both}")
    return 0


def _first_token_s(engine: Engine, prompt: list[int]) -> float:
    begun = time.process_time()
    engine.add("prompt", prompt, Sampling(temperature=0))
    while not engine.step():
        pass
    engine.cancel("prompt")
    return time.process_time() - begun


def priorities(_options: argparse.Namespace) -> int:
    """Interactive requests alone, and beside a batch."""
    text = TALES_VARIANTS["fake"]["text"] | {"slots": SLOTS}
    with tempfile.TemporaryDirectory(prefix="bench-promises-") as out:
        spec = tales_spec({"text": text, "serving.drain_propagation_s": 0})
        with patch.dict(TUNED, step_ms=STEP_MS):
            package(spec, Path(out), progress=Progress(quiet=True))
        with running(spec, mar=Path(out, "model.mar")) as server:
            alone, _ = asyncio.run(_mixed(server, batch=False))
            beside, batch = asyncio.run(_mixed(server, batch=True))
    for name, seen in (("interactive alone", alone), ("interactive beside a batch", beside), ("batch", batch)):
        firsts = [(each.times[0] - each.sent_at) * 1000 for each in seen if each.times]
        refused = sum(each.status == 503 for each in seen)
        figures = ", ".join(f"p{at} {np.percentile(firsts, at):,.0f} ms" for at in (50, 99))
        print(f"priorities: {name}: {len(seen)} requests, {refused} refused; first text {figures}")
    return int(any(each.status != 200 for each in (*alone, *beside)))


async def _mixed(server: Running, *, batch: bool) -> tuple[list[Stream], list[Stream]]:
    """An interactive request a second; the batch asks for so many times what the slots can write."""
    each_s = TOKENS * STEP_MS / 1000 / SLOTS
    ways = [("interactive", INTERACTIVE_S)] + ([("batch", each_s / BATCH_TIMES)] if batch else [])
    seen = await asyncio.gather(*(_sent(server, *way) for way in ways))
    return seen[0], seen[1] if batch else []


async def _sent(server: Running, priority: str, every_s: float) -> list[Stream]:
    tasks = []
    for _ in range(round(LOAD_S / every_s)):
        body: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": TOKENS}
        asked = stream(server.ports.inference, PATH, body, headers={"X-Priority": priority})
        tasks.append(asyncio.create_task(asked))
        await asyncio.sleep(every_s)
    return await asyncio.gather(*tasks)


def redis(_: argparse.Namespace) -> int:
    """Clients ask for answers that are kept; after the first half Redis is gone."""
    folder, packed = packaged_tales("int8")
    with tempfile.TemporaryDirectory(prefix="bench-promises-") as out, redis_server(Path(out)) as store:
        # With room for few in memory, so that most answers are asked of Redis.
        kept = {"redis": store.url, "mb": 0.001}
        spec = tales_spec(TALES_VARIANTS["int8"] | {"serving.cache": kept, "serving.drain_propagation_s": 0})
        with running(spec, mar=folder / packed.mar, environment={"MARINA_REDIS_AUTH": PASSWORD}) as server:
            before, after = asyncio.run(_asked(server, lambda: None)), asyncio.run(_asked(server, store.kill))
    for name, (outcomes, times) in (("with it", before), ("killed in the middle", after)):
        figures = ", ".join(f"p{at} {np.percentile(times, at) * 1000:,.0f} ms" for at in (50, 99))
        print(f"redis: {name}: {dict(outcomes)}, {figures}")
    return int(set(before[0] + after[0]) != {200})


async def _asked(server: Running, half_way: Callable[[], object]) -> tuple[Counter[int], list[float]]:
    outcomes: Counter[int] = Counter()
    times: list[float] = []
    left = iter(range(ANSWERS))

    async def client() -> None:
        for number in left:
            if number == ANSWERS // 2:
                await asyncio.to_thread(half_way)
            body: dict[str, object] = {"prompt": f"Tale {number % 20}", "max_tokens": 8, "temperature": 0}
            seen = await stream(server.ports.inference, PATH, body)
            outcomes[seen.status if seen.ended else 0] += 1
            times.append(time.monotonic() - seen.sent_at)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return outcomes, times


PROMISES: dict[str, Callable[[argparse.Namespace], int]] = {
    "prefix": prefix,
    "priorities": priorities,
    "redis": redis,
}


if __name__ == "__main__":
    sys.exit(main())
