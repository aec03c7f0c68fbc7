"""The sections of a spec about what is served: the model and its inputs."""

import re
from keyword import iskeyword
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema, field_validator

from marina.config.cpu_targets import CpuTarget
from marina.config.errors import listed
from marina.config.other_formats import other_format
from marina.config.remote import meant_hub_id, parse_remote, remote_form
from marina.config.sections.encoding import Encoding
from marina.config.sections.picture import Activation, Detection, Image, MaskSize, PictureTask
from marina.config.sections.section import Count, Filled, Identifier, PathPart, Section, Share
from marina.config.sections.varying import Varying

HANDLERS = ("archive", "audio", "image", "tensor", "text")
Task = Literal["answer", "classify", "embed", "fill", "rerank", "tokens"]
Precision = Literal["bf16", "fp16", "fp32", "int4", "int8"]
Dtype = Literal["bool", "float32", "float64", "int32", "int64", "uint8"]


_SOURCES = "`torchvision:NAME`, `./file.py:factory`, `./program.pt2`"
_FOLDERS = "`hf:./folder` or `hf:OWNER/NAME`"
# How files are called that `torch.save` and `torch.jit.save` write.
SAVED = (".bin", ".ckpt", ".pkl", ".pt", ".pth", ".tar", ".torchscript")
# The values of fields that only other kinds of models have.
_ABSENT: dict[str, Any] = {
    "precision": "unknown",
    "compile": "archive",
    "cpu_target": "native",
    "calibration": None,
    "min_agreement": 0.0,
    "adapter": None,
    "weights": None,
    "files": (),
    "requirements": None,
    "task": None,
    "activation": None,
    "detection": None,
    "mask_size": "input",
    "encoding": None,
    "image": None,
    "inputs": None,
    "outputs": None,
    "labels": None,
    "batch_sizes": (1, 4),
    "name": None,
    "version": None,
    "default_handler": None,
    "envelope": None,
    "decode_requests": False,
    "hidden_env": None,
    "metrics": None,
}


def _importable(name: str) -> bool:
    """Whether `import` takes the name, which a worker's entry module writes."""
    return name.isidentifier() and not iskeyword(name)


def _meant(source: str) -> str:
    """What to write, after the list of what is allowed, for a model's id as other tools write it."""
    meant = meant_hub_id(source)
    return f"; a model of Hugging Face's hub is `{meant}`" if meant else ""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as err:
        raise ValueError("allowed: a regular expression") from err
    return text


def _own_handler(handler: str) -> str:
    file, _, name = handler.partition(":")
    if not (file.endswith(".py") and _importable(name)):
        raise ValueError(f"allowed: {listed(HANDLERS)} or `./file.py:Class`")
    if not _importable(PurePath(file).stem):
        raise ValueError("allowed: a file name that Python can import")
    return handler


class Tensor(Section):
    """One named input of a `tensor` model, without its batch dimension."""

    shape: tuple[Count | Varying, ...] = ()
    """Size of each dimension after the batch; `[]` is a scalar. One dimension may vary from request to request:
    `[{max: 512, buckets: [32, 128, 512]}]` or `[{max: 512, buckets: dynamic}]`. Lands in the record and the compiled
    graph."""
    mask_of: Identifier | None = None
    """Makes this input the mask of another one that varies: clients do not send it; it is 1 where that input has values
    and 0 where it is padding. A mask has no `shape`. Lands in the record."""
    dtype: Dtype = "float32"
    """Element type. Lands in the record and the compiled graph."""
    min: float | None = None
    """Values below it are refused with 422; default: no limit, but 0 for rows of a table. Lands in the record of the
    MAR."""
    max: float | None = None
    """Values above it are refused with 422; default: no limit, but the last row for rows of a table, such as words of
    an embedding. Lands in the record of the MAR."""

    @property
    def varying(self) -> Varying | None:
        """The dimension that varies; None if none does."""
        return next((side for side in self.shape if isinstance(side, Varying)), None)

    @property
    def largest_shape(self) -> tuple[int, ...]:
        """The shape, with the dimension that varies at its largest."""
        return tuple(side.max if isinstance(side, Varying) else side for side in self.shape)


# Fields of several kinds of models.
Picture = Annotated[
    Image | None,
    Field(description="How a picture becomes the model's input; default for torchvision: what its weights need."),
]
Inputs = Annotated[
    Annotated[dict[Identifier, Tensor], Field(min_length=1)] | None,
    Field(
        description="Inputs by name, in the order of the model's arguments; needed unless a `.pt2` program or, for a "
        "handler of your own, `image` says them."
    ),
]
Libraries = Annotated[
    Filled | None,
    Field(
        description="A requirements file with the libraries that your handler, or your source with `compile: eager`, "
        "imports beyond what a pod has; default for an archive: its own file. `marina package` pins them to wheels, "
        "which an image has in a layer of its own. Lands in the record of the MAR."
    ),
]
AdapterFolder = Annotated[
    Filled | None,
    Field(
        description="Folder of a LoRA adapter, as `peft` saves it, which is merged with the model of `source`. It may "
        "lie elsewhere, as `source` may. Read by `marina package`."
    ),
]
LabelFile = Annotated[
    Filled | None,
    Field(
        description="`imagenet`, or a text file with one label on each line; default: none, or those of the folder. "
        "Lands in the MAR."
    ),
]


class Model(Section):
    """What is served. Which fields it has depends on the kind of model, which `handler` and `task` say."""

    source: Filled
    """`torchvision:NAME`, `./file.py:factory`, `./program.pt2` (torch.export), `./model.pt` (a module that was saved
    whole, or TorchScript, only with `--trust-pickle`) or `hf:./folder`, a model as `transformers` saves it, for
    `handler: text`; for `handler: archive`, a `.mar`, a `.tar.gz` or a folder. Folders and files may also lie
    elsewhere: `hf:OWNER/NAME@REVISION` on Hugging Face's hub, `timm:NAME.TAG`, `mlflow:models:/NAME@ALIAS`,
    `oci://REGISTRY/NAME:TAG`, `s3://`, `gs://` and `az://`, each with `#FILE` for one file of it. Read by `marina
    package`, which records the version."""
    handler: str = "image"
    """`archive`, `audio`, `image`, `tensor`, `text`, or a handler of your own as `./file.py:Class`. Lands in the MAR's
    entry module."""
    trust_pickle: bool = False
    """Files that Python unpickles may be read, which runs whatever code is in them: only for files whose makers you
    trust. `marina package --trust-pickle` sets it, too. Lands in the record."""

    if TYPE_CHECKING:
        precision: Precision | Literal["unknown"]
        compile: Literal["aot", "archive", "eager", "export", "jit"]
        cpu_target: CpuTarget
        calibration: str | None
        min_agreement: float
        adapter: str | None
        weights: str | None
        files: tuple[str, ...]
        requirements: str | None
        task: Task | PictureTask | Literal["transcribe"] | None
        activation: Activation | None
        detection: Detection | None
        mask_size: MaskSize
        max_seconds: float
        encoding: Encoding | None
        image: Image | None
        inputs: dict[str, Tensor] | None
        outputs: tuple[str, ...] | None
        labels: str | None
        batch_sizes: tuple[int, ...]
        name: str | None
        version: str | None
        default_handler: str | None
        envelope: str | None
        decode_requests: bool
        hidden_env: str | None
        metrics: str | None
    else:

        def __getattr__(self, name: str) -> Any:
            """The value of a field that only other kinds of models have."""
            return _ABSENT[name] if name in _ABSENT else super().__getattr__(name)

    @field_validator("source")
    @classmethod
    def _named(cls, source: str) -> str:
        if wrong := other_format(source):
            raise ValueError(f"{wrong[0]}: {wrong[1]}")
        kind, _, name = source.partition(":")
        if (form := remote_form(source)) and parse_remote(source) is None:
            raise ValueError(f"allowed: `{form}`")
        is_named = name and (kind in ("hf", "torchvision") or kind.endswith(".py"))
        is_file = source.endswith(".pt2") or source.lower().endswith(SAVED)
        if not (is_named or parse_remote(source) or is_file):
            raise ValueError(f"allowed: {_SOURCES}, {_FOLDERS}" + _meant(source))
        return source

    @property
    def folder(self) -> str | None:
        """The folder of a model as `transformers` saves it, or where it lies elsewhere; None for any other source."""
        if remote := parse_remote(self.source):
            return self.source if remote.is_folder else None
        return self.source.removeprefix("hf:") if self.source.startswith("hf:") else None

    @property
    def weights_file(self) -> str | None:
        """The file of the weights; None if they are random, in the source itself, or a name of torchvision's."""
        named = self.weights is None or self.weights == "random"
        return None if named or (self.from_torchvision and not re.search(r"[./]", str(self.weights))) else self.weights

    @property
    def saved_whole(self) -> bool:
        """Whether the source is a file that `torch.save` or `torch.jit.save` wrote, with the module itself in it."""
        is_file = not self.adopted and self.folder is None
        return is_file and self.source.lower().endswith(SAVED)

    @property
    def encodes(self) -> bool:
        """Whether it is an encoder, which answers texts as a whole."""
        return isinstance(self, Encoder)

    @property
    def listens(self) -> bool:
        """Whether it takes sound."""
        return isinstance(self, Listener)

    @property
    def writes(self) -> bool:
        """Whether it is a language model, which answers token by token."""
        return isinstance(self, Writer)

    @property
    def adopted(self) -> bool:
        """Whether it is an archive for TorchServe, whose own handler runs as it stands."""
        return isinstance(self, Archive)

    @property
    def from_torchvision(self) -> bool:
        """Whether the source is the name of a torchvision model."""
        return self.source.startswith("torchvision:")


class Computed(Model):
    """A model that Marina computes itself, compiled or not."""

    precision: Precision = "fp32"
    """fp32, bf16 or int8 on cpu, and int4 for a compiled language model; fp32, fp16 or bf16 on cuda. Compiled into the
    artifact."""
    compile: Literal["aot", "eager", "export", "jit"] = "aot"
    """aot: compiled when it is packaged; jit: compiled when a worker starts, from a packed cache; export: the exported
    program runs uncompiled; eager: not exported either: the worker runs the files of `./file.py:factory`, or, for a
    language model, torch's own kernels."""
    cpu_target: CpuTarget = "native"
    """The CPUs that it is compiled for. native: CPUs like the packaging machine's; x86-64-v3: all with AVX2;
    x86-64-v4: all with AVX-512; amx: Sapphire Rapids and later. Compiled into the artifact; lands in its key and, as a
    node selector, in the Deployment."""
    calibration: Filled | None = None
    """Folder of pictures, of `.npy` inputs, or of `.txt` files with one text on each line: int8 is calibrated with
    them, and every artifact is checked on them. It needs as many as the largest of `batch_sizes`. For a language model:
    texts that it should know better than by guessing."""
    min_agreement: Share = 0.99
    """Share of the checked inputs that must get the same answer from the artifact as from the eager fp32 model (image:
    the same top class; tensor: within 5 % of its largest value); with fewer, no MAR is written."""


class Batched(Computed):
    """A model that answers rows in batches."""

    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4)
    """The batch sizes that are compiled, and run once before a worker is ready, in rows; a batch is cut and padded to
    them. Lands in the MAR."""

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise ValueError("allowed: different sizes in ascending order")
        return sizes


class Network(Batched):
    """A model whose weights are loaded into a network."""

    weights: Filled | None = None
    """`random` (always the same), a torchvision weights name such as `IMAGENET1K_V2`, or a file, which may lie
    elsewhere as `source` may: safetensors, or what `torch.save` or `torch.jit.save` wrote, of which nothing is run; of
    several files, their index `model.safetensors.index.json`. A `.pt2` program and a module that was saved whole
    contain their own. Read by `marina package`."""
    requirements: Libraries = None
    outputs: Annotated[tuple[Identifier, ...], Field(min_length=1)] | None = None
    """Names of the model's outputs, in order; default: `output`, or `output_0`, `output_1` … Lands in the record."""

    @field_validator("source")
    @classmethod
    def _no_folder(cls, source: str) -> str:
        if source.startswith("hf:") and not issubclass(cls, ImageModel):
            raise ValueError(f"allowed: {_SOURCES}; a folder needs `handler: text` or `image`")
        return source

    @field_validator("outputs")
    @classmethod
    def _different(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names and len(set(names)) < len(names):
            raise ValueError("allowed: a different name for each output")
        return names


class ImageModel(Network):
    """Pictures in; classes, boxes, a mask or an embedding out."""

    handler: Literal["image"] = "image"
    """`image`: pictures in; what comes out says `task`."""
    task: PictureTask = "classify"
    """What is answered for a picture. classify: the most likely classes; detect: boxes, of the outputs that `outputs`
    calls `boxes`, `scores` and perhaps `labels`; embed: the output `embedding`; segment: a PNG whose pixels are
    classes, of the output `scores`. Lands in the record of the MAR."""
    activation: Activation | None = None
    """What makes scores from 0 to 1 of the network's numbers. none: they are that already; default: softmax, and none
    for `detect`. Lands in the record and the compiled graph."""
    detection: Detection | None = None
    """What a detector's outputs mean."""
    mask_size: MaskSize = "input"
    """The size of a mask. input: that of the model's input; picture: that of the picture that was sent, each pixel with
    the class of the nearest one of the model's input. Lands in the record of the MAR."""
    image: Picture = None
    labels: LabelFile = None


class TensorModel(Network):
    """Arrays in, arrays out."""

    handler: Literal["tensor"]
    """`tensor`: arrays in, arrays out."""
    inputs: Inputs = None


class OwnModel(Network):
    """A network behind a handler of your own."""

    handler: Annotated[str, AfterValidator(_own_handler), WithJsonSchema({"type": "string", "pattern": r"\.py:"})]
    """A handler of your own as `./file.py:Class`."""
    files: tuple[str, ...] = ()
    """Files that a handler of your own reads, such as its vocabulary. Land in the folder `files` of the MAR."""
    image: Picture = None
    inputs: Inputs = None
    labels: LabelFile = None


class Encoder(Batched):
    """Texts in, classes, scores or embeddings out."""

    handler: Literal["text"]
    """`text`: texts in; what comes out says `task`."""
    task: Task
    """What an encoder from a `hf:` folder answers. answer: where a text answers a question;
    classify: the most likely labels of a text; embed: its embedding;
    fill: the most likely tokens in the place of each mask; rerank: how well documents fit a query; tokens: a label for
    each token. Compiled into the graph."""
    encoding: Encoding | None = None
    """How an encoder reads texts."""
    adapter: AdapterFolder = None
    labels: LabelFile = None

    @field_validator("source")
    @classmethod
    def _is_folder(cls, source: str) -> str:
        return check_folder(source)


class Writer(Computed):
    """A language model."""

    handler: Literal["text"]
    """`text`: a language model."""

    adapter: AdapterFolder = None

    @field_validator("source")
    @classmethod
    def _is_folder(cls, source: str) -> str:
        return check_folder(source)


class Listener(Computed):
    """Sound in; what was said, or the classes that it belongs to, out."""

    handler: Literal["audio"]
    """`audio`: sound in, as WAV, FLAC, MP3 or Ogg; what comes out says `task`."""
    task: Literal["classify", "transcribe"]
    """transcribe: what was said; classify: the most likely labels. Lands in the record."""
    max_seconds: Annotated[float, Field(gt=0, le=3600)] = 30
    """Longer sounds are refused, s; Whisper hears at most 30 at a time. A model that hears any length is warmed up with
    one as long as this. Lands in the record."""

    if not TYPE_CHECKING:
        batch_sizes: ClassVar[tuple[int, ...]] = (1,)

    @field_validator("source")
    @classmethod
    def _is_folder(cls, source: str) -> str:
        return check_folder(source, "audio")


class Archive(Model):
    """An archive that was made for TorchServe, whose own handler runs as it stands."""

    handler: Literal["archive"]
    """`archive`: the handler that is in the archive."""
    name: PathPart | None = None
    """The model's name in the URLs of its clients, `/predictions/NAME`; default: the spec's `name`. Lands in the MAR's
    manifest."""
    version: PathPart | None = None
    """Its version in their URLs, `/predictions/NAME/VERSION`; default: the spec's `version`. Lands in the MAR's
    manifest."""
    default_handler: Filled | None = None
    """The handler of an archive that names none, as `default_service_handler` in TorchServe's config.properties. Lands
    in the record."""
    envelope: Literal["body", "json", "kserve", "kservev2"] | None = None
    """What is taken off requests and put around answers, as `service_envelope` in TorchServe's config.properties. Lands
    in the record."""
    decode_requests: bool = True
    """Whether the handler gets JSON and text decoded, as `decode_input_request` in TorchServe's config.properties.
    Lands in TorchServe's config.properties."""
    requirements: Libraries = None
    hidden_env: Annotated[str, AfterValidator(_pattern)] | None = None
    """A regular expression for the names of variables that the handler does not see, as `blacklist_env_vars` in
    TorchServe's config.properties; default: it sees all of the pod's. Lands in TorchServe's config.properties."""
    metrics: Filled | None = None
    """A file that declares the handler's own metrics, as `metrics_config` in TorchServe's config.properties; default:
    they are detected. Lands in the MAR."""

    @field_validator("source")
    @classmethod
    def _named(cls, source: str) -> str:
        if re.match(r"\w[\w+-]+:", source) and parse_remote(source) is None:
            raise ValueError("allowed for the `archive` handler: a `.mar`, a `.tar.gz` or a folder")
        return source


def check_folder(source: str, handler: str = "text") -> str:
    """The source, if it is a folder as `transformers` saves it, or else ValueError."""
    remote = parse_remote(source)
    if not (remote.is_folder if remote else source.startswith("hf:")):
        raise ValueError(f"allowed for the `{handler}` handler: {_FOLDERS}")
    return source


KINDS: dict[str, type[Model]] = {
    "`handler: image`": ImageModel,
    "`handler: tensor`": TensorModel,
    "a handler of your own": OwnModel,
    "`handler: text` with a `task`": Encoder,
    "`handler: text` without a `task`": Writer,
    "`handler: archive`": Archive,
    "`handler: audio`": Listener,
}


def kind_of(model: Any) -> str:
    """The kind of a model, or of the fields of one, as errors name it."""
    if isinstance(model, Model):
        return next(words for words, kind in KINDS.items() if type(model) is kind)
    fields = model if isinstance(model, dict) else {}
    image, tensor, own, encoder, writer, archive, listener = KINDS
    if fields.get("task") is not None and fields.get("handler") == "text":
        return encoder
    named = {"archive": archive, "audio": listener, "image": image, "tensor": tensor, "text": writer}
    return named.get(str(fields.get("handler", "image")), own)


AnyModel = Annotated[
    Annotated[ImageModel, Tag("`handler: image`")]
    | Annotated[TensorModel, Tag("`handler: tensor`")]
    | Annotated[OwnModel, Tag("a handler of your own")]
    | Annotated[Encoder, Tag("`handler: text` with a `task`")]
    | Annotated[Writer, Tag("`handler: text` without a `task`")]
    | Annotated[Archive, Tag("`handler: archive`")]
    | Annotated[Listener, Tag("`handler: audio`")],
    Discriminator(kind_of),
]
