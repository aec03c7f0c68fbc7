"""The lines that a leader writes to its output while a load runs, and the functions that read them.

In a cluster its output is the pod's log. Container runtimes cut a log into lines of at most 16 KiB, and its beginning
may be lost; so the record is written in numbered pieces, each with the digest of the whole."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence

from marina.config.errors import InputError
from marina.config.measured import Machine
from marina.loadtest.measuring import GeneratorHealth, Measurement, Second

_SECOND, _RECORD = "marina-second ", "marina-record "
END_LINE = "marina-end"
_PIECE = 8_000


def second_line(number: int, second: Second, beats: Sequence[GeneratorHealth]) -> str:
    """One second of the load as a line."""
    data = {
        "number": number,
        "second": second.model_dump(mode="json"),
        "beats": [beat.model_dump() for beat in beats],
    }
    return _SECOND + json.dumps(data)


def read_second_line(line: str) -> tuple[int, Second, list[GeneratorHealth]] | None:
    """The second that a line reports; None if it is another kind of line."""
    if not line.startswith(_SECOND):
        return None
    try:
        data = json.loads(line.removeprefix(_SECOND))
    except ValueError:
        return None
    beats = [GeneratorHealth.model_validate(beat) for beat in data["beats"]]
    return data["number"], Second.model_validate(data["second"]), beats


def is_end(line: str) -> bool:
    """Whether a line says that a plan is done; another plan may follow."""
    return line.rstrip() == END_LINE


def record_lines(measured: Measurement, machine: Machine) -> Iterator[str]:
    """A measurement, and the leader's machine, as lines that fit into a log."""
    record = {"measurement": measured.model_dump(mode="json"), "machine": machine.model_dump(mode="json")}
    packed = base64.b64encode(zlib.compress(json.dumps(record).encode())).decode()
    pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
    digest = hashlib.sha256(packed.encode()).hexdigest()
    for number, piece in enumerate(pieces, 1):
        yield f"{_RECORD}{number}/{len(pieces)} {digest} {piece}"


def read_record_lines(lines: Iterable[str]) -> tuple[Measurement, Machine]:
    """The measurement and the machine from the end of a log; InputError if they are missing or incomplete."""
    pieces: dict[int, str] = {}
    wanted, digest = 0, ""
    for line in lines:
        if line.startswith(_RECORD):
            place, digest, piece = line.removeprefix(_RECORD).split()
            number, _, count = place.partition("/")
            wanted, pieces[int(number)] = int(count), piece
    packed = "".join(pieces[number] for number in sorted(pieces))
    if not wanted or len(pieces) != wanted or hashlib.sha256(packed.encode()).hexdigest() != digest:
        raise InputError(f"the log of the load test has only {len(pieces)} of {wanted or '?'} pieces of its record")
    record = json.loads(zlib.decompress(base64.b64decode(packed)))
    return Measurement.model_validate(record["measurement"]), Machine.model_validate(record["machine"])
