"""Simulates what an unpickler would do with a pickle, on a stack of descriptions: nothing is imported or called.

The simulation ends where an unpickler would fail; everything up to there would have happened."""

from dataclasses import dataclass, field

from marina.archiver.inspecting.allowed_imports import ALLOWED, resolve_import
from marina.archiver.inspecting.opcodes import read_opcodes

_DATA_OPCODES = (
    "BININT BININT1 BININT2 INT LONG LONG1 LONG4 FLOAT BINFLOAT BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 NONE "
    "NEWTRUE NEWFALSE EMPTY_LIST EMPTY_DICT EMPTY_SET"
)
_DATA = frozenset(_DATA_OPCODES.split())
_TEXT_OPCODES = "STRING BINSTRING SHORT_BINSTRING UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8"
_TEXT = frozenset(_TEXT_OPCODES.split())
_FROM_MARK = frozenset({"LIST", "DICT", "FROZENSET"})
# Opcodes that put this many values from the top of the stack into the container below them.
_INTO = {"APPEND": 1, "SETITEM": 2}
_INTO_FROM_MARK = frozenset({"APPENDS", "SETITEMS", "ADDITEMS"})
BY_EXTENSION = "imports by an extension code, which does not name what is imported"
_EXTENSIONS = frozenset({"EXT1", "EXT2", "EXT4"})
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})
_REFERS_OUTSIDE = "refers to an object outside the pickle"
MOST_OPCODES = 20_000_000


@dataclass(frozen=True)
class Global:
    """An imported class or function."""

    module: str
    name: str

    @property
    def allowed(self) -> bool:
        return (self.module, self.name) in ALLOWED

    def __str__(self) -> str:
        return f"{self.module} {self.name}"


@dataclass(frozen=True)
class Opaque:
    """A value of which only the origin is known: plain `data`, the `result` of an allowed call, or `unknown`."""

    origin: str


DATA, RESULT, UNKNOWN = Opaque("data"), Opaque("result"), Opaque("unknown")
Value = Global | Opaque | str | tuple["Value", ...]


class _Fails(Exception):
    """The unpickler would fail here."""


@dataclass
class PickleEffects:
    """What one pickle does: where it ends, what it imports, and what in it runs code or cannot be analysed."""

    end: int
    opcodes: int = 0
    complete: bool = False
    protocol: int = 0
    imports: list[Global] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """What it does beyond creating tensors and plain data."""
    doubts: list[str] = field(default_factory=list)
    """What the usual unpicklers refuse, but a custom one may not."""


def simulate_pickle(data: bytes, at: int, most: int = MOST_OPCODES) -> PickleEffects:
    """Simulates what happens when the pickle at a position is loaded, for at most `most` opcodes."""
    machine = _Machine(at)
    for name, argument, end in read_opcodes(data, at):
        machine.effects.opcodes += 1
        if machine.effects.opcodes > most:
            machine.effects.calls.append("has too many opcodes to be analysed")
            break
        try:
            machine.step(name, argument)
        except _Fails:
            break
        machine.effects.end = end
        machine.effects.complete = name == "STOP"
    return machine.effects


class _Machine:
    """The unpickler's stack and memo; `effects` collects what happens."""

    def __init__(self, at: int) -> None:
        self.effects = PickleEffects(at)
        self._stack: list[Value] = []
        self._below: list[list[Value]] = []
        self._memo: dict[int, Value] = {}

    def step(self, name: str, argument: bytes) -> None:
        if name in _DATA:
            self._stack.append(DATA)
        elif name in _TEXT:
            self._stack.append(_text(name, argument))
        elif name in _TUPLES:
            count = _TUPLES[name]
            self._need(count)
            top = tuple(self._stack[len(self._stack) - count :])
            del self._stack[len(self._stack) - count :]
            self._stack.append(top)
        elif name in _NOTHING:
            self._control(name, argument)
        elif name in _FROM_MARK:
            self._from_mark()
            self._stack.append(DATA)
        elif name == "TUPLE":
            gathered = tuple(self._from_mark())
            self._stack.append(gathered)
        elif name in _INTO or name in _INTO_FROM_MARK:
            self._put_into(name)
        elif name.endswith(("GET", "PUT")) or name in ("MEMOIZE", "MARK", "POP", "POP_MARK", "DUP"):
            self._move(name, argument)
        else:
            self._risky(name, argument)

    def _control(self, name: str, argument: bytes) -> None:
        if name == "PROTO":
            self.effects.protocol = argument[0]
            if argument[0] > 5:
                raise _Fails
        if name == "STOP":
            self._need(1)

    def _put_into(self, name: str) -> None:
        if name in _INTO:
            self._need(_INTO[name] + 1)
            del self._stack[-_INTO[name] :]
        else:
            self._from_mark()
            self._need(1)
        self._change_top()

    def _change_top(self) -> None:
        if isinstance(self._stack[-1], Global):
            self.effects.calls.append(f"changes {self._stack[-1]}")

    def _move(self, name: str, argument: bytes) -> None:
        if name == "MARK":
            self._below.append(self._stack)
            self._stack = []
        elif name == "POP_MARK":
            self._from_mark()
        elif name == "POP":
            if self._stack:
                self._stack.pop()
            else:
                self._from_mark()
        elif name.endswith("GET"):
            key = _key(name, argument)
            if key not in self._memo:
                raise _Fails
            self._stack.append(self._memo[key])
        else:
            self._need(1)
            if name == "DUP":
                self._stack.append(self._stack[-1])
            else:
                self._memo[len(self._memo) if name == "MEMOIZE" else _key(name, argument)] = self._stack[-1]

    def _risky(self, name: str, argument: bytes) -> None:
        """Handles the opcodes that import, call or change something."""
        if name == "GLOBAL":
            self._stack.append(self._import(*_lines(argument)))
        elif name == "STACK_GLOBAL":
            self._need(2)
            attribute, module = self._stack.pop(), self._stack.pop()
            if isinstance(module, str) and isinstance(attribute, str):
                self._stack.append(self._import(module, attribute))
            else:
                self.effects.calls.append("imports a name that is computed and cannot be analysed")
                self._stack.append(UNKNOWN)
        elif name == "INST":
            self._from_mark()
            self._call(self._import(*_lines(argument)), always=True)
        elif name == "OBJ":
            items = self._from_mark()
            if not items:
                raise _Fails
            self._call(items[0], always=True)
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            count = 3 if name == "NEWOBJ_EX" else 2
            self._need(count)
            function = self._stack[-count]
            del self._stack[-count:]
            self._call(function, always=name == "NEWOBJ_EX")
        elif name == "BUILD":
            self._need(2)
            self._stack.pop()
            self._change_top()
        elif name in _EXTENSIONS:
            self.effects.calls.append(BY_EXTENSION)
            self._stack.append(UNKNOWN)
        else:
            self._external(name)

    def _external(self, name: str) -> None:
        """Handles the opcodes whose values come from outside the pickle."""
        if name == "BINPERSID":
            self._need(1)
            key = self._stack.pop()
            # The only kind of reference that torch accepts: a tensor's storage.
            if not (isinstance(key, tuple) and key and key[0] == "storage"):
                self.effects.doubts.append(_REFERS_OUTSIDE)
        elif name in ("PERSID", "NEXT_BUFFER"):
            self.effects.doubts.append(_REFERS_OUTSIDE)
        elif name == "READONLY_BUFFER":
            self._need(1)
            return
        else:
            # An opcode of a newer Python.
            self.effects.calls.append(f"has the opcode {name}, which Marina does not know")
        self._stack.append(UNKNOWN)

    def _import(self, module: str, name: str) -> Global:
        value = Global(*resolve_import(module, name, self.effects.protocol))
        if not all(part.isidentifier() for part in value.module.split(".")):
            raise _Fails  # no module can have that name
        self.effects.imports.append(value)
        return value

    def _call(self, function: Value, *, always: bool) -> None:
        """Calls a value; `always` reports the call even if the function is allowed."""
        if isinstance(function, (str, tuple)) or function is DATA:
            raise _Fails
        if isinstance(function, Opaque):
            self.effects.calls.append("calls the result of an earlier call")
        elif always or not function.allowed:
            self.effects.calls.append(f"calls {function}")
        allowed = isinstance(function, Global) and function.allowed
        self._stack.append(RESULT if allowed else UNKNOWN)

    def _need(self, count: int) -> None:
        if len(self._stack) < count:
            raise _Fails

    def _from_mark(self) -> list[Value]:
        """Pops everything above the last mark, and the mark."""
        if not self._below:
            raise _Fails
        items, self._stack = self._stack, self._below.pop()
        return items


def _text(name: str, argument: bytes) -> Value:
    """The value of a string opcode; UNKNOWN if it cannot be decoded."""
    try:
        if name == "STRING":
            return argument.strip()[1:-1].decode("unicode_escape")
        if name == "UNICODE":
            return argument.decode("raw_unicode_escape")
        if name.endswith("STRING"):
            return argument.decode("ascii")
        return argument.decode("utf-8", "surrogatepass")
    except ValueError:
        return UNKNOWN


def _key(name: str, argument: bytes) -> int:
    if name in ("GET", "PUT"):
        try:
            return int(argument)
        except ValueError as err:
            raise _Fails from err
    return int.from_bytes(argument, "little")


def _lines(argument: bytes) -> tuple[str, str]:
    try:
        module, _, name = argument.decode("utf-8").partition("\n")
    except ValueError as err:
        raise _Fails from err
    return module, name
