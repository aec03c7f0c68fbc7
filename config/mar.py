"""Opens a MAR, and raises the same ArchiveError however its bytes are damaged."""

import errno
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marina.config.errors import ArchiveError, reason_of

# What Python's zip reader raises for damaged bytes.
READ_ERRORS = (
    OSError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    RuntimeError,  # encrypted, or compressed by an unknown method (NotImplementedError)
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def open_mar(mar: Path) -> Iterator[zipfile.ZipFile]:
    """Opens the archive for reading; errors while it is read in the `with` block become ArchiveError too."""
    try:
        with zipfile.ZipFile(mar) as archive:
            yield archive
    except FileNotFoundError as err:
        raise ArchiveError(f"{mar}: no such MAR", hint="marina package SPEC") from err
    except READ_ERRORS as err:
        if isinstance(err, OSError) and err.errno in _NO_ROOM:
            raise
        raise ArchiveError(f"{mar}: not a readable MAR: {reason_of(err)}", hint="marina package SPEC") from err
