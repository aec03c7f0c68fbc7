"""The engine that a package names."""

from handlers.generation.engine import Engine
from handlers.generation.fake import FakeEngine
from handlers.generation.slots import Slots
from handlers.record import RecordError, TextSpec


def make_engine(text: TextSpec) -> Engine:
    """Ready to be stepped: weights are read, and every shape was run."""
    slots = Slots(text.slots, context=text.context, prefill_chunk=text.prefill_chunk)
    if text.engine == "fake":
        return FakeEngine(slots, step_s=text.step_ms / 1000)
    raise RecordError(f"`text.engine`: got `{text.engine}`, allowed: `fake`")
