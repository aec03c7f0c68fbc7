"""`inspect`'s simulated unpickler, compared with Python's own unpickler."""

import io
import pickle
import random

import pytest
import torch._weights_only_unpickler

from marina.archiver.inspecting.allowed_imports import ALLOWED
from marina.archiver.inspecting.unpickler import simulate_pickle

# Every opcode that moves or uses values, with arguments that often fit together.
_PIECES = [
    *(b"(", b"0", b"1", b"2", b")", b"t", b"\x85", b"\x86", b"\x87", b"]", b"a", b"e", b"l", b"}", b"s", b"u", b"d"),
    *(b"N", b"\x88", b"K\x01", b"M\x01\x00", b"I1\n", b"L1L\n", b"F1\n", b"\x8f", b"\x90", b"\x91"),
    *(b"\x8c\x02os", b"\x8c\x06system", b"Vos\n", b"Vsystem\n", b"S'os'\n", b"U\x06system", b"X\x02\x00\x00\x00os"),
    *(b"p0\n", b"p1\n", b"q\x00", b"q\x01", b"r\x02\x00\x00\x00", b"g0\n", b"g 1\n", b"h\x00", b"h\x02", b"\x94"),
    *(b"cos\nsystem\n", b"ccollections\nOrderedDict\n", b"\x93", b"\x93", b"R", b"R", b"R", b"b", b"\x81", b"\x92"),
    *(b"ios\nsystem\n", b"o", b"Q", b"Px\n", b"\x80\x02", b"\x80\x04", b"B\x01\x00\x00\x00x", b"C\x01x"),
]
# Puts enough on the stack for the rest to work with.
_FIRST = [b"(", b"((", b"cos\nsystem\n", b"cos\nsystem\n", b")", b"}", b"N", b"\x8c\x02os", b"Vsystem\n", b"]"]


class Trap:
    """Stands in for whatever a pickle imports, and records that it was used."""

    used = False

    def __call__(self, *_: object, **__: object) -> "Trap":
        Trap.used = True
        return self

    def __setstate__(self, _: object) -> None:
        Trap.used = True


class Watched(pickle.Unpickler):
    imported = False

    def find_class(self, module: str, name: str) -> object:
        Watched.imported = True
        return Trap()

    def persistent_load(self, _: object) -> object:
        return Trap()


def loaded(data: bytes) -> tuple[bool, bool, bool]:
    """Whether Python's unpickler imported something, used it, and reached the end."""
    Trap.used = Watched.imported = False
    try:
        Watched(io.BytesIO(data)).load()
        complete = True
    except Exception:
        complete = False
    return Watched.imported, Trap.used, complete


@pytest.mark.parametrize("seed", range(8))
def test_whatever_python_imports_and_uses_is_reported(seed: int) -> None:
    chosen = random.Random(seed)
    used_somewhere = 0
    for _ in range(3000):
        first = b"".join(chosen.choices(_FIRST, k=chosen.randrange(3, 12)))
        data = first + b"".join(chosen.choices(_PIECES, k=chosen.randrange(2, 10))) + b"."
        imported, used, complete = loaded(data)
        effects = simulate_pickle(data, 0)
        seen = effects.calls or effects.doubts
        assert not imported or effects.imports or seen, data
        assert not used or seen or any(value.allowed for value in effects.imports), data
        assert not complete or effects.complete, data
        used_somewhere += used
    assert used_somewhere > 50


def test_the_allowed_names_are_those_of_the_weights_only_unpickler() -> None:
    ours = {f"{module}.{name}" for module, name in ALLOWED}
    assert ours == set(torch._weights_only_unpickler._get_allowed_globals())
