"""The record of a package: `marina.json` inside the MAR, and `package.json` beside it, which adds the MAR's hash.

This module writes `marina.json`; `handlers/record.py` reads it into dataclasses of its own, which a test holds to the
fields here. Importing this module, with the validators of every section, would cost each worker 0.3 s of CPU at its
start, a tenth of the whole."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from marina.config.cpu_targets import CpuTarget
from marina.config.errors import ArchiveError, InputError
from marina.config.mar import open_mar
from marina.config.requirements import Requirements
from marina.config.sections import Activation, Detection, Image, MaskSize, PictureTask, Precision

RECORD = "marina.json"
SCHEMA = "marina.package/1"
# Two outputs agree if they differ by no more than this share of the largest value.
TOLERANCE = 0.05


class Part(BaseModel):
    """The base of everything that is recorded: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Options(Part):
    """The base of a stage's options, whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class Document(Part):
    """The base of records with a file of their own; the field `schema_` is the file's `schema`."""

    model_config = ConfigDict(alias_generator=lambda name: name.rstrip("_"), populate_by_name=True)

    _sha256: str = PrivateAttr("")

    @property
    def sha256(self) -> str:
        """The hash of the file that it was read from."""
        return self._sha256

    def to_data(self) -> dict[str, Any]:
        """The record as JSON data."""
        return self.model_dump(mode="json", by_alias=True)


DocumentT = TypeVar("DocumentT", bound=Document)


class Packed(Part):
    """The base of what is recorded in a MAR: unknown keys are ignored, because a MAR may be older than this Marina."""

    model_config = ConfigDict(extra="ignore")


class PackedImage(Image):
    """The spec's `model.image`, with every default filled in, and what is answered for a picture."""

    model_config = ConfigDict(extra="ignore")

    task: PictureTask = "classify"
    activation: Activation = "softmax"
    detection: Detection | None = None
    mask_size: MaskSize = "input"


class Port(Packed):
    """One input or output of the compiled function, without its batch dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    columns: tuple[tuple[float | None, float | None], ...] | None = None
    """The `min` and `max` of each column, the last dimension, if they have different ones."""
    varies: int | None = None
    """The dimension that varies from request to request; `shape` has its largest size."""
    pad: float | None = None
    """The value that fills up a shorter request; default: `min`, or 0."""

    @property
    def sent_as(self) -> str:
        """Its type in requests and answers: numpy has no bfloat16, so float32 stands in for it."""
        return "float32" if self.dtype == "bfloat16" else self.dtype

    def by_column(self) -> list["Port"]:
        """Each column as a port of its own; empty if all have the same `min` and `max`."""
        return [
            self.model_copy(update={"shape": self.shape[:-1], "min": low, "max": high, "columns": None})
            for low, high in self.columns or ()
        ]


class Lengths(Packed):
    """The sizes that a varying dimension is padded to, and the mask that tells the model which part is padding."""

    buckets: tuple[int, ...]
    dynamic: bool = False
    """Rows are padded to the longest of them only; the warm-up runs and times the sizes in `buckets`."""
    mask: int | None = None
    """Position of the mask among the arguments of the compiled function; it is not one of the inputs."""
    mask_dtype: str = "bool"


class Artifact(Packed):
    """One compiled file, and the batch size and length that it was compiled for."""

    file: str
    batch: int
    length: int | None = None


class Sample(Packed):
    """The request body that the readiness inference and the load test send."""

    file: str
    content_type: str
    answer: str | None = None
    """The file with what the package answered to it; None if that cannot be compared, or was another one each time."""


class MachineKey(Packed):
    """What a machine must have to run the artifacts; `isa` are the flags of its CPU."""

    torch: str
    device: Literal["cpu", "cuda"]
    isa: tuple[str, ...] = ()
    target: CpuTarget = "native"
    capability: str | None = None
    cuda: str | None = None


class Agreement(Packed):
    """How well the packaged artifacts agree with the eager fp32 model; `not_judged` says why it was not measured."""

    inputs: Literal["calibration", "generated"]
    count: int
    measure: Literal["top-1", "tolerance"]
    agreement: float | None
    not_judged: str | None = None
    max_abs_difference: float
    cosine: float
    perplexity_ratio: float | None = None
    perplexity: float | None = None
    """Of a language model in fp32, on texts that it should know: those of the calibration, or some plain English."""
    guessing: int | None = None
    """The perplexity of guessing: that of a model to which all tokens are equally likely."""

    @property
    def text(self) -> str:
        """The agreement in words, to follow the name of what was compared."""
        if self.agreement is None:
            return f"not judged: {self.not_judged}"
        known = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"{self.agreement:.4f} ({self.measure} on {self.count} {self.inputs} inputs){known}"


class WeightsFile(Packed):
    """A file of weights that is not packed but mounted in the pod: its size, and the sha256 of its first MiB."""

    bytes: int
    head: str


class VllmSetup(Packed):
    """How vLLM is run: the spec's `text.vllm`, and the files in `weights` if these are not packed."""

    python: str
    weights: str | None
    args: dict[str, bool | int | float | str]
    files: dict[str, WeightsFile] = {}


class Writing(Packed):
    """How a language model writes: the spec's `text`, the folder of the model's files, and the tokens that end an
    answer."""

    folder: str
    engine: Literal["aot", "fake", "torch", "vllm"]
    context: int
    slots: int
    waiting: int
    prefill_chunk: int
    max_tokens: int
    ends: tuple[int, ...]
    flush_ms: float
    """The text of an answer is sent at most once in this time, except for its beginning and its end, ms."""
    step_ms: float
    """How long a step of the `fake` engine takes, ms."""
    speculation: Literal["auto", "off"]
    """auto: where a text repeats itself, the compiled engine guesses the next tokens and checks several of them in one
    step, as long as that is faster."""
    vllm: VllmSetup | None = None
    tools: str = "auto"
    """The form in which the model calls tools; auto: as its chat template tells."""
    defaults: dict[str, int | float] = {}
    """What `generation_config.json` says for parameters that a request leaves out."""


class Code(Packed):
    """Python source that runs in the worker, below `source/` in the MAR: a factory, and the weights of its model."""

    file: str
    factory: str
    weights: str
    seed: int = 0
    shared: tuple[str, ...] = ()


class EncoderSetup(Packed):
    """How an encoder reads texts: the spec's `task` and `encoding`, and the tokenizer from the model's folder."""

    task: Literal["answer", "classify", "embed", "fill", "rerank", "tokens"]
    max_tokens: int
    truncate: Literal["error", "left", "right"]
    tokenizer: str
    prompts: dict[str, str] = {}
    """What requests may have put before their texts, by name."""
    default_prompt: str | None = None
    """The name of the prompt for requests that ask for none."""
    is_normalised: bool = False
    """Whether embeddings have the length 1."""
    mask: str | None = None
    """What stands in a text for a token that is to be filled in."""


class Adopted(Packed):
    """An archive that was made for TorchServe: how its own handler is loaded, from the folder in the MAR that has its
    files unchanged."""

    folder: str
    source_sha256: str | None
    """The sha256 of the archive; None for a folder."""
    handler: str
    """As in the archive's manifest, or the spec's `model.default_handler`."""
    name: str
    """The model's name in URLs."""
    version: str
    """Its version in URLs."""
    envelope: str | None = None
    metrics: str | None = None
    """The file that declares the handler's metrics; without one they are detected."""


class Sound(Packed):
    """How sound is read and answered: the spec's `task` and `max_seconds`, and what the model's folder says."""

    task: Literal["classify", "transcribe"]
    family: Literal["classes", "ctc", "whisper"]
    """What the network answers: scores of classes, a token for each moment (CTC), or tokens one after another."""
    rate: int
    """Samples a second."""
    max_seconds: float
    least: int
    """The fewest samples that the network takes."""
    settings: str
    """The file with the tokens and what else the family needs, as JSON."""
    weights: str | None = None
    """The file of the weights and tables, if they are not compiled in."""


class BodyFormat(Packed):
    """The form of bodies or answers that a user's own handler declares: their content type, a schema for JSON, and an
    example."""

    content_type: str
    json_schema: dict[str, Any]
    example: Any = None


class Pin(Packed):
    """What a source that lies elsewhere was when it was packaged: its version there, and the sha256 of each file."""

    version: str
    files: dict[str, str]


class Draft(Document):
    """The record of a package before its answers were compared; fields that do not apply keep their defaults."""

    model_config = ConfigDict(extra="ignore")

    schema_: str = SCHEMA
    name: str
    version: str
    source: str
    weights: str | None = None
    pins: dict[str, Pin] = {}
    """The sources that lie elsewhere, by their text in the spec."""
    handler: str
    precision: Precision | Literal["unknown"]
    compile: Literal["aot", "archive", "eager", "export", "jit"]
    """archive: the model is what the handler of an archive makes of it."""
    device: Literal["cpu", "cuda"]
    workers: int
    threads: int
    batch_sizes: tuple[int, ...] = ()
    image: PackedImage | None = None
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
    requirements: Requirements | None = None
    lengths: Lengths | None = None
    text: Writing | None = None
    encoding: EncoderSetup | None = None
    takes: BodyFormat | None = None
    gives: BodyFormat | None = None
    archive: Adopted | None = None
    sound: Sound | None = None
    trust_pickle: bool = False

    @property
    def url_name(self) -> str:
        """The model's name in the paths of URLs."""
        return self.archive.name if self.archive else self.name

    def json_text(self) -> str:
        """The record as it is packed: JSON with sorted keys, indented, with a newline at the end."""
        return json.dumps(self.to_data(), indent=2, sort_keys=True) + "\n"


class Record(Draft):
    """The record in a MAR: everything that a server or a handler must know about it."""

    agreement: Agreement
    files: dict[str, str]


class Package(Part):
    """A MAR on disk: `package.json`."""

    mar: str
    sha256: str
    bytes: int
    record: Record


ImageTarget = Literal["cpu", "cuda", "loadtest", "vllm"]


class ImageLayer(Packed):
    """One uncompressed layer, so that the builder's or registry's compression does not matter."""

    digest: str
    """The sha256 of the uncompressed tar, which is the image's `diff_id`."""
    bytes: int
    """The size of the uncompressed tar."""
    created_by: str
    """The instruction that created it."""


class ImageRecord(Document):
    """An image that was built: `image.json`."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["marina.image/1"] = "marina.image/1"
    ref: str
    tag: str
    digest: str | None
    """The digest of the manifest in the registry; None if the image was not pushed."""
    package_sha256: str | None
    requirements: str | None = None
    """The digest of the handler's libraries, which lie in a layer of their own; None if it brings none."""
    target: ImageTarget
    base: str
    builder: str
    layers: tuple[ImageLayer, ...]
    bytes: int
    """The uncompressed size of all layers."""

    @property
    def reference(self) -> str:
        """The reference that pods use. It includes the digest if there is one, so that nobody can replace the image."""
        return f"{self.ref}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def read_record(mar: Path) -> Record:
    """Reads the record inside a MAR; nothing else is unpacked, and nothing unpickled."""
    with open_mar(mar) as archive:
        if RECORD not in archive.namelist():
            text = f"{mar}: has no `{RECORD}`, so Marina did not make it"
            raise ArchiveError(text, hint=f"marina inspect {quote(str(mar))}")
        data = archive.read(RECORD)
    try:
        return Record.model_validate_json(data)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ArchiveError(f"{mar}: `{RECORD}`: `{field}`: {first['msg']}", hint="marina package SPEC") from err


def read_package(folder: Path) -> Package:
    """Reads `package.json` of a build folder."""
    file = folder / "package.json"
    try:
        return Package.model_validate_json(file.read_bytes())
    except FileNotFoundError as err:
        raise InputError(f"{file}: nothing was packaged yet", hint="marina package SPEC") from err
    except ValidationError as err:
        raise InputError(f"{file}: not a package record of this version", hint="marina package SPEC") from err


def check_mar(folder: Path, package: Package, hint: str) -> None:
    """Raises InputError unless the MAR in a build folder is the one that its record describes."""
    mar = folder / package.mar
    if not mar.is_file() or file_sha256(mar) != package.sha256:
        raise InputError(f"{mar}: missing, or not the file that {folder / 'package.json'} describes", hint=hint)


def read_document(file: Path, kind: type[DocumentT], hint: str) -> DocumentT | None:
    """Reads a record that another stage wrote; None if there is no such file. Raises InputError with the hint if it
    cannot be read, or has another form or schema."""
    schema = kind.model_fields["schema_"].default
    try:
        content = file.read_bytes()
        data = json.loads(content)
        if data.get("schema") != schema:
            raise InputError(f"{file}: got schema `{data.get('schema')}`, allowed: `{schema}`", hint=hint)
        record = kind.model_validate(data)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise InputError(f"{file}: cannot be read: {err.strerror}", hint=hint) from err
    except (ValueError, AttributeError, TypeError) as err:
        raise InputError(f"{file}: not a record of this version", hint=hint) from err
    record._sha256 = hashlib.sha256(content).hexdigest()
    return record


def file_sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Writes a record as JSON; a reader sees the old file or the new one, never half of it."""
    write_text(file, json.dumps(data, indent=2, sort_keys=True) + "\n")


def partial_file(file: Path) -> Path:
    """Where this process writes a file before it moves it into place; two may write the same file at once."""
    return file.with_name(f".{file.name}.{os.getpid()}.partial")


def write_text(file: Path, text: str) -> None:
    """Writes a text file; a reader sees the old file or the new one, never half of it."""
    partial = partial_file(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # A path in it may have a name that is not UTF-8.
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(file)
    finally:
        with suppress(OSError):
            partial.unlink()
