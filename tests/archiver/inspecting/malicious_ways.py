"""More archives as attackers build them: ways round a list of forbidden names, files that other programs run, and
members that two readers see differently."""

import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from malicious import Members, zipped

_PATTERN = """
class M(type):
    def __instancecheck__(self, x):
        return True

class A(metaclass=M):
    __match_args__ = ("save",)

match 1:
    case A(s):
        s("a")
"""
_EVIL = "__class__,__import__('os').system('true')"
# torch evaluates annotations and comments of what it compiles, and gives what they name to a class of the file.
_SCRIPTED = """
import torch

class A:
    def __class_getitem__(cls, run):
        run("true")

def f(x{annotation}):
    # {comment}
    return x

torch.jit.script(f)
"""
# `dataclass` makes functions out of the names in `__annotations__`.
_DATACLASSES = {
    "fields of a class that is made": f"type('A', (), {{'__annotations__': {{{_EVIL!r}: int}}}})",
    "fields of a class of a class": f"type('M', (type,), {{}})('A', (), {{'__annotations__': {{{_EVIL!r}: int}}}})",
}
_DATACLASS = "from dataclasses import dataclass\n{before}\n{decorators}\nclass A{bases}:\n    a: int{value}\n"
PYTHON = {
    **{way: f"from dataclasses import dataclass\ndataclass({made})\n" for way, made in _DATACLASSES.items()},
    "fields that another decorator adds": _DATACLASS.format(
        before="def add(cls):\n    return cls", decorators="@dataclass\n@add", bases="", value=""
    ),
    "fields that a base adds": _DATACLASS.format(
        before="class B:\n    def __init_subclass__(cls):\n        pass", decorators="@dataclass", bases="(B)", value=""
    ),
    "fields that a metaclass adds": _DATACLASS.format(
        before="class M(type(int)):\n    pass", decorators="@dataclass", bases="(metaclass=M)", value=""
    ),
    "fields that a value adds": _DATACLASS.format(
        before="class V:\n    def __set_name__(self, cls, name):\n        pass",
        decorators="@dataclass",
        bases="",
        value=" = V()",
    ),
    "fields that a default adds": _DATACLASS.format(
        before="from dataclasses import field\nclass V:\n    def __set_name__(self, cls, name):\n        pass\nv = V()",
        decorators="@dataclass(eq=True)",
        bases="",
        value=" = field(default=v)",
    ),
    "fields that an object adds, named on the way": _DATACLASS.format(
        before="class V:\n    def __set_name__(self, cls, name):\n        pass",
        decorators="@dataclass",
        bases="",
        value="\n    b: (c := V())",
    ),
    "dataclass by another name": "from dataclasses import dataclass\nd = dataclass\n",
    "a comment that is compiled": _SCRIPTED.format(annotation="", comment="type: (A[torch.os.system]) -> Tensor"),
    "an annotation that is compiled": _SCRIPTED.format(annotation=": 'A[torch.os.system]'", comment=""),
    "a trace that compiles": "import torch\ntorch.jit.trace(len, ())\n",
    "attributes that are copied": "import functools\nfunctools.update_wrapper(1, len, ('__self__',))\n",
    "attributes that are copied, by wraps": "from functools import wraps\nwraps(len, ('__self__',), ())(1)\n",
    "attributes that are copied, named": "from functools import wraps\nwraps(len, assigned=('__self__',))(1)\n",
    "an array in a file": "import numpy as np\nnp.load('a.npy', 'r+')[0] = 1\n",
    "an array in a file, named": "import numpy as np\nnp.load('a.npy', mmap_mode='r+')[0] = 1\n",
    "a module that a name imports": "import torch\ntorch.set_default_tensor_type('this.a')\n",
    "a graph that is made of names": "from torchvision.models.feature_extraction import create_feature_extractor\n",
    "a module that a function returns": "from PIL import ImageDraw\nImageDraw.getdraw()[1].Image.io\n'Image io'\n",
    "a picture's file": "from PIL import Image\ni = Image.open('a')\ni.fp.raw.__init__('b', 'w')\n'fp raw'\n",
    "a log's file": "import logging\nlogging.StreamHandler().stream.buffer.detach()\n'stream buffer'\n",
    "files of an archive": "import numpy as np\nnp.load('a.npz').zip.extractall('/')\n'zip extractall'\n",
    "a picture's inside in a file": "from PIL import Image\nImage.open('a').im.save_ppm('b')\n'im save_ppm'\n",
    "getattr by another name": "import torch\ng = getattr\ng(torch, 'o' + 's')\n",
    "getattr given away": "import torch\nlist(map(getattr, [torch], ['a']))\n",
    "getattr named on the way": "(g := getattr)(1, 'a')\n",
    "a statement that is timed": "from torch.utils.benchmark import Timer\nTimer('1').timeit(1)\n",
    "a statement that is timed, by the module": "import torch.utils.benchmark as b\nb.Timer('1').timeit(1)\n",
    "a command of the report on bugs": "import torch.utils.collect_env as c\nc.run('true')\n",
    "a wrapper of exec": "from torch.jit.unsupported_tensor_ops import execWrapper\nexecWrapper('1', {}, {})\n",
    "a pickle in bytes": "import torch\ntorch.storage._load_from_bytes(b'')\n",
    "annotations that are evaluated": "import typing\nclass A:\n    x: \"print('a')\"\ntyping.get_type_hints(A)\n",
    "a forward reference": "import typing\ntyping.ForwardRef('1')._evaluate({}, {}, frozenset())\n",
    "arithmetic on pictures": "from PIL import ImageMath\nImageMath.eval('1')\n",
    "unsafe arithmetic on pictures": "from PIL import ImageMath\nImageMath.unsafe_eval('1')\n",
    "a program that shows pictures": "from PIL import ImageShow\nImageShow.show(1)\n",
    "a program that takes pictures": "from PIL import ImageGrab\nImageGrab.grab()\n",
    "a command of uuid": "import uuid\nuuid._get_command_stdout('sh', '-c', 'true')\n",
    "a Fortran compiler": "import numpy as np\nnp.f2py.compile('x')\n",
    "a Fortran compiler, imported": "from numpy import f2py\nf2py.compile('x')\n",
    "numpy's runstring": "import numpy as np\nnp.testing._private.utils.runstring('1', {})\n",
    "numpy's rundocs": "import numpy.testing as t\nt.rundocs('a.py')\n",
    "numpy's exec_command": "from numpy.distutils.exec_command import exec_command\nexec_command('true')\n",
    "numpy's reader of arrays": "import numpy as np\nnp.lib.format.read_array(1, allow_pickle=True)\n",
    "settings of np.load put together": "import numpy as np\nk = {'allow_pickle': True}\nnp.load('a', **k)\n",
    "np.load by another name": "import numpy as np\nf = np.load\nf('a', None, True)\n",
    "torch.load by another name": "import torch\nload = torch.load\nload('a')\n",
    "torch.load out of a list": "import torch\n[torch.load][0]('a')\n",
    "a file that is written": "import torchvision\ntorchvision.io.write_file('a', 1)\n",
    "a file that is mapped": "import torch\ntorch.from_file('a', shared=True, size=1)\n",
    "a storage that is a file": "import torch\ntorch.UntypedStorage.from_file('a', True, 1)\n",
    "a log that is a file": "import logging\nlogging.FileHandler('a')\n",
    "weights that are a file": "from safetensors.torch import save_file\nsave_file({}, 'a')\n",
    "a download": "from torchvision.datasets.utils import download_url\ndownload_url('http://a', 'b')\n",
    "a call through copy": "import copy\ncopy._reconstruct(None, print, ('a',))\n",
    "a function made of text": "import dataclasses\ndataclasses._create_fn('f', (), ['1'])\n",
    "a process of Marina's own": "from marina.handlers.generation.engines import vllm_process\n",
    "the compiler's cache of code": "import torch._inductor.codecache as c\n",
    "torch's inside": "import torch\ntorch._C._jit_pass_inline\n",
    "the compiler's tools": "import torch\ntorch._dynamo.debug_utils.run_load_args\n",
    "a graph's source": "import torch.fx.graph_module as g\ng._forward_from_src('1', {})\n",
    "a picture that is a file": "from PIL import Image\nImage.new('L', (1, 1)).save('a.png')\n",
    "a picture that is a file, by an argument": "def save(image, path):\n    image.save(path)\n",
    "a picture in what is no memory": "import io\ndef f(image, b):\n    b = io.BytesIO()\n    image.save(b)\n",
    "a picture in what is memory elsewhere": "import io\nb = io.BytesIO()\nfor b in ('a',):\n    im.save(b)\n",
    "memory of another name": "def BytesIO():\n    return 'a'\nfrom io import BytesIO\nim.save(BytesIO())\n",
    "a picture's method by a pattern": "match 1:\n    case object(save=s):\n        s('a')\n",
    "a picture's method by a class of its own": _PATTERN,
    "a picture's method by a class that is made": "A = type('A', (), {})\nmatch 1:\n    case A(s):\n        s('a')\n",
    "a picture's method in a table": "from PIL import Image\nImage.Image.__dict__['save'](1, 'a')\n",
    "a log in a file": "import logging\nlogging.basicConfig(filename='a', filemode='w')\n",
    "a log in a file, by settings": "import logging\nk = {'filename': 'a'}\nlogging.basicConfig(**k)\n",
    "a log in a file, by another name": "from logging import basicConfig as b\nb(filename='a')\n",
    "the weights in a file": "import torch\ntorch.save({}, 'a')\n",
    "a path of the handler's": "class A:\n    def f(self):\n        self.directory.write_text('a')\n",
    "a path that is moved": "class A:\n    def f(self):\n        self.directory.replace('/a')\n",
    "a path that is moved, by its name": "def replace(self):\n    self.directory.replace(target='/a')\n",
    "a path that is opened": "class A:\n    def f(self):\n        self.directory.open('w')\n",
    "a profile in a file": "import torch\ntorch.profiler.profile().export_chrome_trace('a')\n",
    "a program of TorchScript": "import torch\nscript = torch.jit.script(len)\ntorch.jit.load('a')\n",
    "a module as a value": "import torch\nm = torch\nm.hub.load('a/b', 'c')\n",
    "a module in a list": "import torch\n[torch][0].ops.load_library('a')\n",
    "a module by a function": "import torch\ntorch.get_device_module('cuda').os\n",
    "a function of a library that is changed": "import json\njson.loads = print\n",
    "a handler of logs that is reached": "import logging\nlogging.getLogger().manager.loggerDict\n",
    "frames": "def f():\n    yield\nf().gi_frame.f_globals\n",
    "a path's module": "class A:\n    def f(self):\n        self.directory._flavour.os\n",
    "XML": "import xml.etree.ElementTree as t\nt.parse('a')\n",
    "XML in a picture": "from PIL import Image\nImage.open('a').getxmp()\n",
    "weights from the web": "from torchvision.models import ResNet18_Weights as W\nW.DEFAULT.get_state_dict()\n",
    "a tokenizer from the web": "from tokenizers import Tokenizer\nTokenizer.from_pretrained('a')\n",
    "a formatter that reaches": "import string\nstring.Formatter().get_field('0.a', (1,), {})\n",
    "annotations that are dispatched": "import functools\n@functools.singledispatch\ndef f(x):\n    pass\n",
    "something nobody knows": "import torch\ntorch.something_new()\n",
    "something of a value that nobody knows": "def f(x):\n    return x.something_new()\n",
    "a name from nowhere": "something_new()\n",
    "everything of a module": "from torch import *\n",
    "a module's module": "import json\njson.codecs.open('a', 'w')\n",
    "a module's module's module": "import warnings\nwarnings.linecache.tokenize.open('a')\n",
}


def _raw(data: bytes) -> bytes:
    """The data compressed without a header."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


@cache
def files(payload: bytes) -> dict[str, Members]:
    """Members that hide the pickle `payload`, or that some other program would run."""
    raw = _raw(payload + bytes(99))
    entity = b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"
    engine = zlib.compressobj(9, zlib.DEFLATED, 9)
    aliases = b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9))
    template = {"chat_template": "{{ cycler.__init__.__globals__.os.popen('true').read() }}"}
    return {
        "the old form of xz": {"weights.bin": lzma.compress(payload, format=lzma.FORMAT_ALONE)},
        "zlib with a small window": {"weights.bin": engine.compress(payload) + engine.flush()},
        "lzip": {"weights.bin": b"LZIP\x01\x0c" + payload},
        "compress": {"weights.bin": b"\x1f\x9d\x90" + payload},
        "behind what looks like a number": {"weights.bin": b"GGUF\x03\0\0\0" + payload},
        "a template": {"tokenizer_config.json": json.dumps(template).encode()},
        "a template of its own": {"chat_template.jinja": b"{{ ''.__class__.__mro__[1].__subclasses__() }}"},
        "code of another repository": {"config.json": b'{"auto_map": {"AutoModel": "a/evil--modeling.X"}}'},
        "objects of Java": {"a.bin": b"\xac\xed\x00\x05sr\x00\x01a"},
        "a graph that calls Python": {"saved_model.pb": b"\x08\x01\x12\x06PyFunc"},
        "a graph that writes a file": {"saved_model.pb": b"\x08\x01\x12\x09WriteFile"},
        "weights from elsewhere": {"model.onnx": b"\x0a\x08location\x12\x10../../etc/passwd"},
        "a promise of R": {"a.rds": gzip.compress(b"X\n\0\0\0\3")},
        "a program in an archive": {"a.pyz": b"#!/usr/bin/python\n" + zipped({"__main__.py": b"import os\n"})},
        "an egg": {"a.egg": zipped({"a.py": b"x = 1\n"})},
        "a line that Python runs when it starts": {"evil.pth": b"import os; os.system('true')\n"},
        "YAML that doubles itself": {"model-config.yaml": b"a: &a [1]\n" + aliases},
        "packages of its own": {"model-config.yaml": b"useVenv: true\n"},
        "raw deflate": {"weights.bin": raw},
        "raw deflate with more behind it": {"weights.bin": raw + b"\0\0"},
        "much out of little, raw": {"weights.bin": _raw(bytes(300_000_000))},
        "XML that reads a file": {"a.xml": entity},
        "XML that reads a file, by another name": {"labels": b"\n" + entity},
        "XML in another encoding": {"a.svg": entity.decode().encode("utf-16")},
        "XML that doubles itself": {"a.xml": b"<!DOCTYPE a [<!ENTITY b 'b'><!ENTITY c '&b;&b;'>]><a>&c;</a>"},
        "XML with rules from elsewhere": {"a.xml": b"<?xml version='1.0'?><!DOCTYPE a SYSTEM 'http://a'><a/>"},
        "XML that includes": {"a.xml": b"<a xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='/a'/></a>"},
        "code from elsewhere": {"model-config.yaml": b"handler:\n  trust_remote_code: True\n"},
        "code from elsewhere, as JSON": {"setup_config.json": b'{"trust_remote_code": true}'},
        "a batch file": {"start.bat": b"echo\n"},
    }


def array_of_objects(payload: bytes, kind: str) -> bytes:
    """A numpy file whose header says what the values are."""
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': (1,), }}".encode()
    header = header.ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + payload


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
LAYOUTS = {
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


def legacy(payload: bytes) -> bytes:
    """A model in torch's old format, followed by another pickle."""
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(1)}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue() + payload
