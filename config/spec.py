"""The spec: what is served and how well, as one frozen record.

`sections` has its blocks, `combinations` the rules about several fields at once, and `load` reads a file.
`docs/reference/spec.md` is generated from the docstrings under the fields."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr

from marina.config.quantity import quantity
from marina.config.remote import Remote, parse_remote
from marina.config.request_headers import CONTENT_TYPES
from marina.config.sections import (
    AnyModel,
    Cost,
    Encoding,
    Image,
    Kubernetes,
    Load,
    Name,
    Scaling,
    Section,
    Serving,
    Slo,
    Text,
    Tracing,
    Version,
    Vllm,
)
from marina.config.yaml_lines import Location, line_of

# Memory for the largest JSON body that the handlers decode: their limit on the number of values, in MB.
_JSON_MB = 116
# Memory for decoding a picture: this, or so much for each pixel that it may have, if that is more;
# `handlers/pictures/cost.py` refuses what needs more.
DECODED_BYTES, PIXEL_BYTES = 160_000_000, 4
# How many requests more than may wait still reach the handler of a language model, which then refuses them.
REFUSED_AT_ONCE = 8
_QUEUE = 200


@dataclass(frozen=True)
class Fetched:
    """A source that lies elsewhere, on this machine."""

    path: Path
    """The file or folder that it was fetched to."""
    version: str
    """What identifies it there for good: the commit, the number, the digest."""


class Spec(Section):
    """One file says what is served and how well; everything else is made from it."""

    name: Name
    """A DNS label of at most 40 characters: the name of the MAR, the image and every object."""
    version: Version = "1.0"
    """Version of the model, as text. Lands in the MAR, the metrics and the labels."""
    model: AnyModel
    """What is served."""
    serving: Serving = Serving()
    """How TorchServe runs it."""
    text: Text | None = None
    """How a language model writes; only for `handler: text`."""
    slo: Slo | None = None
    """How well it must serve; without this section nothing is judged."""
    tracing: Tracing | None = None
    """Spans of requests and batches; without this section none are made."""
    cost: Cost | None = None
    """What a pod costs, and what requests may cost; without this section no costs are computed."""
    load: Load = Load()
    """What the load test and the readiness inference send."""
    scaling: Scaling = Scaling()
    """How many pods."""
    kubernetes: Kubernetes = Kubernetes()
    """Where it runs."""

    _file: Path = PrivateAttr(default=Path("spec.yaml"))
    _lines: Mapping[Location, int] = PrivateAttr(default={})
    _fetched: Mapping[str, Fetched] = PrivateAttr(default={})

    @property
    def file(self) -> Path:
        """The file that the spec was read from."""
        return self._file

    def place(self, *location: str | int) -> str:
        """The place of a field as an error names it: file, line (of its section if it is missing) and field.

        Without the line, if not even the field's top section is in the file."""
        line = f":{line_of(self._lines, location)}" if location[:1] in self._lines else ""
        return f"{self._file}{line}: `{'.'.join(map(str, location))}`"

    @property
    def url_name(self) -> str:
        """The model's name in the paths of URLs."""
        return self.model.name or self.name

    @property
    def url_version(self) -> str:
        """The model's version in the paths of URLs."""
        return self.model.version or self.version

    @property
    def sample_type(self) -> str | None:
        """The content type of the spec's sample; None without one, or if nothing says it."""
        if self.load.sample is None:
            return None
        named = CONTENT_TYPES.get(Path(self.load.sample).suffix.lower())
        return self.load.content_type or named or ("application/octet-stream" if self.model.adopted else None)

    @property
    def cores(self) -> float:
        """The CPU limit of a pod, in cores."""
        return quantity(self.kubernetes.resources.cpu)

    def path(self, relative: str) -> Path:
        """A path of the spec; relative ones start at the spec's folder. What lies elsewhere is where it was fetched
        to."""
        fetched = self._fetched.get(relative)
        return fetched.path if fetched else self._file.parent / relative

    @property
    def fetched(self) -> Mapping[str, Fetched]:
        """The sources that lie elsewhere and were fetched, by their text in the spec."""
        return self._fetched

    def with_fetched(self, fetched: Mapping[str, Fetched]) -> "Spec":
        """The spec with these sources on this machine."""
        copy = self.model_copy()
        copy._fetched = fetched
        return copy

    @property
    def remotes(self) -> list[Remote]:
        """The sources that lie elsewhere."""
        named = (self.model.source, self.model.weights, self.model.adapter)
        return [remote for remote in map(parse_remote, named) if remote]

    def is_elsewhere(self, text: str | None) -> bool:
        """Whether a text means something that lies elsewhere and was not fetched yet."""
        return text not in self._fetched and parse_remote(text) is not None

    @property
    def workers(self) -> int:
        """Number of worker processes. `auto`: as many as the cores allow, with a core for each thread; on cuda, one for
        each GPU."""
        if isinstance(self.serving.workers, int):
            return self.serving.workers
        if self.model.writes:
            return 1
        if self.serving.device == "cuda":
            return max(1, self.kubernetes.resources.gpu)
        return max(1, self._whole_cores // (self.serving.threads if isinstance(self.serving.threads, int) else 1))

    @property
    def threads(self) -> int:
        """Threads of each worker. `auto`: the cores of the CPU limit, shared by the workers."""
        if isinstance(self.serving.threads, int):
            return self.serving.threads
        return max(1, self._whole_cores // self.workers)

    @property
    def encoding(self) -> Encoding:
        """How an encoder reads texts; the defaults if the spec has no such section."""
        return self.model.encoding or Encoding()

    @property
    def max_batch(self) -> int:
        """The most requests that TorchServe may put in one batch, with the default filled in."""
        if self.model.writes:
            return self.writing.slots + self.waiting + REFUSED_AT_ONCE
        return self.serving.max_batch or max(self.model.batch_sizes)

    @property
    def waiting(self) -> int:
        """How many requests may wait for a slot of a language model, with the default filled in."""
        return self.serving.queue or self.writing.slots

    @property
    def queue(self) -> int:
        """How many requests TorchServe may keep waiting."""
        return max(_QUEUE, self.max_batch) if self.model.writes else self.serving.queue or _QUEUE

    @property
    def retry_window_s(self) -> int:
        """How long a worker that keeps failing is restarted before the server gives up, s: two starts, or one with its
        pauses."""
        startup_s = self.serving.startup_timeout_s
        return min(2**31 - 1, max(2 * startup_s, startup_s + 60))

    @property
    def max_response_bytes(self) -> int:
        """The largest answer: Java holds copies of several at once, and larger ones may end it, and with it the
        server."""
        return self.serving.java_heap_mb * 2**20 // 6

    @property
    def writing(self) -> Text:
        """How a language model writes, with all defaults filled in."""
        text = self.text or Text()
        engine = text.engine
        if engine == "auto":
            engine = "aot" if self.model.compile == "aot" else "torch"
        changed: dict[str, Any] = {"engine": engine}
        if engine == "vllm":
            changed["vllm"] = text.vllm or Vllm()
        return text.model_copy(update=changed)

    @property
    def vllm(self) -> Vllm | None:
        """How vLLM is run; None if the engine is another one."""
        return self.writing.vllm if self.model.writes and self.writing.engine == "vllm" else None

    @property
    def worker_device(self) -> Literal["cpu", "cuda"]:
        """The device that the worker itself computes on; vLLM computes in processes of its own."""
        return self.serving.device if self.vllm is None else "cpu"

    @property
    def image_target(self) -> Literal["cpu", "cuda", "vllm"]:
        """The target of docker/Dockerfile that serves this spec."""
        return self.serving.device if self.vllm is None else "vllm"

    @property
    def redis(self) -> list[str]:
        """The address of each Redis that the pods use."""
        sessions, cache = self.text.sessions if self.text else None, self.serving.cache
        return ([cache.redis] if cache and cache.redis else []) + ([sessions.redis] if sessions else [])

    @property
    def largest_batch_bytes(self) -> int:
        """The most memory that requests may take in a worker on top of the model: all bodies of a batch, plus decoding,
        which takes one body at a time."""
        body_bytes = self.serving.max_request_mb * 1_000_000
        decoding_mb: float = _JSON_MB
        if self.model.handler not in ("archive", "tensor", "text"):
            image = self.model.image
            pixels = image.max_pixels if image else Image.model_fields["max_pixels"].default
            decoding_mb = max(DECODED_BYTES, PIXEL_BYTES * pixels) / 1_000_000
        # Plus two: a picture in base64 is in memory three times, as the body, as text and as bytes.
        return math.ceil((self.max_batch + 2) * body_bytes + decoding_mb * 1_000_000)

    @property
    def cache_bytes(self) -> int:
        """The most memory that the caches of all workers may take, in bytes."""
        return round(self.workers * self.serving.cache.mb * 1_000_000) if self.serving.cache else 0

    @property
    def _whole_cores(self) -> int:
        return max(1, math.floor(self.cores))

    def trusting(self) -> "Spec":
        """The spec with `model.trust_pickle`."""
        return self.model_copy(update={"model": self.model.model_copy(update={"trust_pickle": True})})

    def uncompiled(self) -> "Spec":
        """The spec for a package that is ready at once but slow: nothing is compiled or quantised."""
        precision = "fp32" if self.model.precision in ("int4", "int8") else self.model.precision
        if self.model.compile not in ("aot", "jit"):
            return self
        # A language model runs without being exported; encoders and all other models are exported.
        way = "eager" if self.model.writes else "export"
        changed = {"compile": way, "precision": precision}
        text = self.text and self.text.model_copy(update={"engine": "auto"} if self.text.engine == "aot" else {})
        return self.model_copy(update={"model": self.model.model_copy(update=changed), "text": text})

    def completed(self) -> dict[str, Any]:
        """The spec as plain data, with every default filled in, and every `auto` that needs no measurement."""
        data = self.model_dump(mode="json")
        data["serving"] |= {"workers": self.workers, "threads": self.threads}
        data["serving"]["queue"] = self.waiting if self.model.writes else self.queue
        if self.model.writes:
            data["text"] = self.writing.model_dump(mode="json")
        else:
            data["serving"]["max_batch"] = self.max_batch
        return data
