"""The engines of language models: Marina's own, which compute the network in the worker, vLLM, and one that only
repeats the prompt. `make_engine` makes the one that a package names."""

from pathlib import Path

from marina.handlers.generation.engine import Engine, Sampling
from marina.handlers.generation.engines.compiled import CompiledDecoder
from marina.handlers.generation.engines.fake import FakeEngine
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.network_engines import ROWS, CompiledEngine, TorchEngine
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.generation.engines.vllm_engine import make_vllm
from marina.handlers.record import RecordError, TextSpec


def make_engine(text: TextSpec, folder: Path, precision: str) -> Engine:
    """Returns a warm engine: its weights are read, and every slot was used."""
    slots = Slots(text.slots, context=text.context, prefill_chunk=text.prefill_chunk)
    if text.engine == "fake":
        return FakeEngine(slots, step_s=text.step_ms / 1000)
    if text.engine == "vllm":
        # vLLM warms itself up.
        return make_vllm(text, folder, precision)
    engine: Engine
    if text.engine == "torch":
        engine = TorchEngine(Llama(folder, precision=precision, slots=text.slots, context=text.context), slots)
    elif text.engine == "aot":
        model = CompiledDecoder(folder, precision=precision, slots=text.slots, context=text.context)
        engine = CompiledEngine(model, slots)
        if text.speculation == "auto" and text.context > ROWS:
            slots.row_cost = engine.measure()
    else:
        raise RecordError(f"`text.engine`: got `{text.engine}`, allowed: `aot`, `fake`, `torch`, `vllm`")
    _warm_up(engine, text)
    return engine


def _warm_up(engine: Engine, text: TextSpec) -> None:
    """Uses every slot: the first reads a prompt of a whole piece, the others copy it, and all write together."""
    names = [f"warm-{index}" for index in range(text.slots)]
    for name in names:
        engine.add(name, [0] * min(text.prefill_chunk, text.context // 2), Sampling(temperature=0))
        engine.step()
    for name in names:
        engine.cancel(name)
