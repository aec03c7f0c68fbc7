"""Shared libraries that a package loads from this machine and an image does not have."""

import os
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from marina.archiver.requirements.reading import REPLACE
from marina.config.errors import SourceError
from marina.config.requirements import VARIABLE
from marina.config.spec import Spec

# What both bases have: Debian's smallest system with its Python (`docker/base.sh`), and `python:slim`.
_IN_IMAGE = {
    *(
        "anl",
        "bz2",
        "c",
        "com_err",
        "crypt",
        "crypto",
        "db-5.3",
        "dl",
        "expat",
        "ffi",
        "gcc_s",
        "keyutils",
        "lzma",
        "m",
    ),
    *("mvec", "ncursesw", "nsl", "nss_dns", "nss_files", "panelw", "pthread", "readline", "resolv", "rt", "sqlite3"),
    *("ssl", "stdc++", "tinfo", "tirpc", "util", "uuid", "z", "zstd"),
}
# Libraries that a worker's own wheels load where they are found, and do without: Pillow this one.
_OPTIONAL = {"fribidi"}
# Wheels that need a screen's libraries, and those that do not.
_WITHOUT_SCREEN = {
    "opencv-contrib-python": "opencv-contrib-python-headless",
    "opencv-python": "opencv-python-headless",
}
# `libGL.so.1.7.0`, `libglib-2.0.so.0`
_LIBRARY = re.compile(r"lib([\w.+-]+?)\.so(?:\.(\d+))?[\d.]*$")
_MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


def check_loaded(spec: Spec, loaded: Iterable[str]) -> None:
    """Refuses a library of this machine, by the paths of all that a worker loaded from outside its Python and its
    package."""
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    for path in loaded:
        match = _LIBRARY.match(Path(path).name)
        driver = match is not None and match[1].startswith(("cuda", "nvidia"))  # comes from the node
        if match is None or match[1] in _IN_IMAGE | _OPTIONAL or driver or path in preloaded:
            continue
        name = f"lib{match[1]}.so{f'.{match[2]}' if match[2] else ''}"
        text = (
            f"{spec.file}: `model.requirements`: a worker loads `{name}` of this machine, which an image lacks: {path}"
        )
        raise SourceError(text, hint=_instead(name))


def hint_for_library(error: str) -> str | None:
    """What to do about an import error that names a shared library; None for any other."""
    match = _MISSING.search(error)
    return _instead(match[1]) if match else None


def _instead(library: str) -> str:
    brought = metadata.distributions(path=[os.environ.get(VARIABLE, "")])
    for wheel in (distribution.metadata["Name"] for distribution in brought):
        if other := _WITHOUT_SCREEN.get(canonicalize_name(wheel)):
            return f"write this line into the requirements file: {REPLACE}{other} instead of {canonicalize_name(wheel)}"
    return f"use a wheel that brings `{library}`, or an image whose base has it: marina image --base IMAGE"
