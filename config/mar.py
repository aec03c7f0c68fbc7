"""Opening a MAR: whatever is wrong with it is one ArchiveError, however its bytes are damaged."""

from __future__ import annotations

import errno
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.errors import ArchiveError

# What Python's readers raise for bytes that are not what they should be.
READ_ERRORS = (
    OSError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    RuntimeError,  # encrypted; a way of compression that is not known is one of these too
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def open_mar(mar: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, to read from; ArchiveError for what is raised while it is read."""
    try:
        with zipfile.ZipFile(mar) as archive:
            yield archive
    except FileNotFoundError as err:
        raise ArchiveError(f"{mar}: no such MAR", hint="marina package SPEC") from err
    except READ_ERRORS as err:
        if isinstance(err, OSError) and err.errno in _NO_ROOM:
            raise
        reason = str(err) if str(err) else type(err).__name__
        raise ArchiveError(f"{mar}: not a readable MAR: {reason}", hint="marina package SPEC") from err
