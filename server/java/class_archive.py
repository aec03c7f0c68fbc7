"""The archive from which Java loads its classes. Without one it looks for 5,000 of them in its jars at every start,
reads them and checks them; that is two fifths of what a start costs it."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from marina.server.java.checks import Java


def class_archive(java: Java, jars: Sequence[Path]) -> Path:
    """The place of this environment's archive for this Java and these jars, where `make_class_archive.py` puts it. Java
    refuses an archive of another Java or of other jars, so each has a name of its own."""
    digest = hashlib.sha256()
    for file in (java.executable, *jars):
        state = file.stat() if file.exists() else None
        digest.update(f"{file} {state and (state.st_size, state.st_mtime_ns)}\n".encode())
    return Path(sys.prefix) / "share" / "marina" / f"java-{digest.hexdigest()[:12]}.jsa"
