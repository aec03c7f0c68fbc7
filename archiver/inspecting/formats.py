"""The format of a file by its first bytes and its name, and whether loading the archive runs it."""

import re

_BY_BEGINNING = (
    (b"\x7fELF", "machine code"),
    (b"\xcf\xfa\xed\xfe", "machine code"),
    (b"MZ\x90", "machine code"),
    (b"\xca\xfe\xba\xbe", "Java or machine code"),
    (b"\xac\xed\x00\x05", "serialised Java objects"),
    (b"#!", "script"),
    (b"\x20\0\0\0PTMF", "TorchScript"),
    (b"\x89HDF", "HDF5"),
    (b"\x93NUMPY", "numpy array"),
    (b"GGUF", "GGUF"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
_BY_NAME = (
    (r"\.pyw?$", "Python"),
    (r"\.py[co]$", "compiled Python"),
    (r"\.(so(\.\d+)*|dll|dylib|pyd|exe)$", "machine code"),
    (r"\.(jar|war|ear|class|ser)$", "Java or machine code"),
    (r"\.(sh|bat|cmd|ps1|vbs)$", "script"),
    (r"\.onnx$", "ONNX"),
    (r"\.pb$", "TensorFlow graph"),
    (r"\.json$", "JSON"),
    (r"\.ya?ml$", "YAML"),
    (r"\.(txt|md|jinja2?|vocab|merges|csv)$", "text"),
)
# How members of a zip file are called that torch wrote, with the folder that it adds.
_BY_MEMBER = (
    (b"/constants.pkl", "TorchScript"),
    (b"/data/aotinductor/", "compiled program"),
    (b"/archive_format", "torch.export program"),
    (b"serialized_exported_program.json", "torch.export program"),
    (b"/data.pkl", "torch checkpoint"),
)
_DIRECTORY_BYTES = 2**20
PICKLE_NAMES = (".ckpt", ".dill", ".joblib", ".pck", ".pickle", ".pkl", ".pt", ".pth", ".sav")
_RUNS = {
    "Python": "Python",
    "compiled Python": "compiled Python, which cannot be read",
    "machine code": "machine code",
    "Java or machine code": "Java or machine code",
    "serialised Java objects": "serialised Java objects, which run code when they are read",
    "script": "a script",
    "TorchScript": "TorchScript: a program of tensors that torch runs",
    "torch.export program": "a torch.export program: torch evaluates the sizes and guards in it as Python",
    "compiled program": "a compiled program: machine code in it is loaded",
    "HDF5": "HDF5: in a Keras model, a Lambda layer is Python",
    "TensorFlow graph": "a TensorFlow graph, which may read and write files",
}


def format_of(name: str, data: bytes) -> str:
    """The format of a file, for people; "data" if it is not known."""
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        directory = data[-_DIRECTORY_BYTES:]
        return next((kind for member, kind in _BY_MEMBER if member in directory), "zip")
    if data[257:262] == b"ustar":
        return "tar"
    for beginning, kind in _BY_BEGINNING:
        if data.startswith(beginning):
            return kind
    if data[:1] == b"\x80" and data[1:2] <= b"\x05" and len(data) > 1:
        return "pickle"
    if data[8:10] == b'{"' and int.from_bytes(data[:8], "little") < len(data):
        return "safetensors"
    otherwise = "pickle" if name.lower().endswith(PICKLE_NAMES) and data else "data"
    return next((kind for pattern, kind in _BY_NAME if re.search(pattern, name, re.IGNORECASE)), otherwise)


def what_runs(kind: str) -> str | None:
    """What runs when a file of this format is loaded; None for plain data, and for pickles, which are scanned."""
    return _RUNS.get(kind)
