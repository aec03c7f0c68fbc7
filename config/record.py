"""The record of a package: `marina.json` inside the MAR, and `package.json` beside it, which adds the MAR's own hash.

`handlers/` reads the one inside with code of its own, because a worker has no pydantic.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from config.cpu_targets import CpuTarget
from config.errors import ArchiveError, InputError
from config.mar import open_mar
from config.sections import Image, Precision

RECORD = "marina.json"
SCHEMA = "marina.package/1"


class Part(BaseModel):
    """A part of what is recorded: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Document(Part):
    """A record with a file of its own, in which `schema_` is `schema`."""

    model_config = ConfigDict(alias_generator=lambda name: name.rstrip("_"), populate_by_name=True)

    def to_data(self) -> dict[str, Any]:
        """As JSON; `model_validate` reads it."""
        return self.model_dump(mode="json", by_alias=True)


class Port(Part):
    """One input or output of the compiled function, without its batch dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    varies: int | None = None
    """The dimension that varies from request to request; `shape` has its largest size."""
    pad: float | None = None
    """What stands behind a request's length; default: `min`, or 0."""


class Lengths(Part):
    """What a dimension that varies is padded to, and the input that says what of it is padding."""

    buckets: tuple[int, ...]
    dynamic: bool = False
    """Every length is computed as it is; the buckets are those that are timed at the warm-up."""
    mask: int | None = None
    """Which of the compiled function's arguments it is; it is not among the inputs."""
    mask_dtype: str = "bool"


class Artifact(Part):
    """One compiled file and the batch it is for."""

    file: str
    batch: int
    length: int | None = None


class Sample(Part):
    """The request body that the readiness inference and the load test send."""

    file: str
    content_type: str


class MachineKey(Part):
    """What a machine must have to run the artifacts."""

    torch: str
    device: Literal["cpu", "cuda"]
    isa: tuple[str, ...] = ()
    target: CpuTarget = "native"
    capability: str | None = None
    cuda: str | None = None


class Agreement(Part):
    """How the packaged artifacts answer, compared with the eager fp32 model; `not_judged` says why nobody knows."""

    inputs: Literal["calibration", "generated"]
    count: int
    measure: Literal["top-1", "tolerance"]
    agreement: float | None
    not_judged: str | None = None
    max_abs_difference: float
    cosine: float
    perplexity_ratio: float | None = None
    perplexity: float | None = None
    """Of texts that a language model should know, computed in fp32: the calibration's, or some plain English."""
    guessing: int | None = None
    """The perplexity of a model that takes any of its tokens for as likely as every other."""

    @property
    def text(self) -> str:
        """In words, after whose agreement it is."""
        if self.agreement is None:
            return f"not judged: {self.not_judged}"
        known = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"{self.agreement:.4f} ({self.measure} on {self.count} {self.inputs} inputs){known}"


class WeightsFile(Part):
    """A file that is mounted where it is served: its size, and the sha256 of its first MiB and of all of it."""

    bytes: int
    head: str
    sha256: str


class VllmSetup(Part):
    """How vLLM is run: the spec's `text.vllm`, and what is in `weights` where they are not in the MAR."""

    python: str
    weights: str | None
    check: Literal["head", "whole"]
    args: dict[str, bool | int | float | str]
    step_timeout_s: float
    files: dict[str, WeightsFile] = {}


class Writing(Part):
    """How a language model writes: the spec's `text`, the folder of the model's files, and the tokens that end it."""

    folder: str
    engine: Literal["aot", "fake", "torch", "vllm"]
    context: int
    slots: int
    waiting: int
    prefill_chunk: int
    max_tokens: int
    flush_ms: float
    step_ms: float
    speculation: Literal["auto", "off"]
    ends: tuple[int, ...]
    priority_header: str = "X-Priority"
    vllm: VllmSetup | None = None


class Code(Part):
    """Source that runs in the worker, below `source/` in the MAR: a factory, and the weights for what it makes."""

    file: str
    factory: str
    weights: str
    seed: int
    shared: tuple[str, ...] = ()


class EncoderSetup(Part):
    """How an encoder reads texts: the spec's `task` and `encoding`, and what the folder of the model says."""

    task: Literal["classify", "embed", "rerank", "tokens"]
    max_tokens: int
    truncate: Literal["error", "left", "right"]
    tokenizer: str


class BodyFormat(Part):
    """What a handler of the user's own says that it takes, or gives: a content type, a JSON schema of what is JSON, and
    an example."""

    content_type: str
    json_schema: dict[str, Any]
    example: Any = None


class Draft(Document):
    """What is known of a package before its answers were compared; what it does not have keeps its default."""

    schema_: str = SCHEMA
    name: str
    version: str
    source: str
    weights: str | None = None
    handler: str
    precision: Precision
    compile: Literal["aot", "eager", "export", "jit"]
    on_mismatch: Literal["fail", "jit"]
    device: Literal["cpu", "cuda"]
    workers: int
    threads: int
    batch_sizes: tuple[int, ...] = ()
    image: Image | None = None
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    labels: str | None = None
    max_request_bytes: int
    max_response_bytes: int
    sample: Sample
    key: MachineKey
    artifacts: tuple[Artifact, ...] = ()
    program: str | None = None
    cache: str | None = None
    code: Code | None = None
    lengths: Lengths | None = None
    text: Writing | None = None
    encoding: EncoderSetup | None = None
    takes: BodyFormat | None = None
    gives: BodyFormat | None = None

    def json_text(self) -> str:
        """The record as the bytes that are packed: sorted, indented, ending in a newline."""
        return json.dumps(self.to_data(), indent=2, sort_keys=True) + "\n"


class Record(Draft):
    """What is in a MAR; everything a server or a handler must know about it."""

    agreement: Agreement
    files: dict[str, str]


class Package(Part):
    """A MAR on disk: `package.json`."""

    mar: str
    sha256: str
    bytes: int
    record: Record


def read_record(mar: Path) -> Record:
    """The record inside a MAR; nothing is unpacked or unpickled."""
    with open_mar(mar) as archive:
        if RECORD not in archive.namelist():
            text = f"{mar}: holds no `{RECORD}`, so Marina did not make it"
            raise ArchiveError(text, hint=f"marina inspect {mar}")
        data = archive.read(RECORD)
    try:
        return Record.model_validate_json(data)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ArchiveError(f"{mar}: `{RECORD}`: `{field}`: {first['msg']}", hint="marina package SPEC") from err


def read_package(folder: Path) -> Package:
    """`package.json` of a build folder."""
    file = folder / "package.json"
    try:
        return Package.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise InputError(f"{file}: nothing was packaged yet", hint="marina package SPEC") from err
    except ValidationError as err:
        raise InputError(f"{file}: not a package record of this version", hint="marina package SPEC") from err


def file_sha256(file: Path) -> str:
    """The sha256 of a file, read in pieces."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Writes a record beside its place and moves it there, so that no reader sees half of it."""
    write_text(file, json.dumps(data, indent=2, sort_keys=True) + "\n")


def write_text(file: Path, text: str) -> None:
    """Writes a text file beside its place and moves it there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
