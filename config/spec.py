"""The spec: what is served and how well, as one frozen record.

Its blocks are in `sections`, what fields may not be together is in `combinations`, reading a file is in `load`.
`docs/01-spec.md` is generated from the docstrings under the fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr

from config.quantity import quantity
from config.sections import (
    Cost,
    Encoding,
    Image,
    Kubernetes,
    Load,
    Model,
    Name,
    Scaling,
    Section,
    Serving,
    Slo,
    Text,
    Version,
    Vllm,
)
from config.yaml_lines import Location

# What the handlers' limit on the values of a JSON body comes to.
_JSON_MB = 116
# Requests beyond those that may wait that still reach the handler of a language model, to be told so.
REFUSED_AT_ONCE = 8


class Spec(Section):
    """One file says what is served and how well; everything else is made from it."""

    name: Name
    """DNS label of at most 40 characters. Names the MAR, the image and every object."""
    version: Version = "1.0"
    """Version of the model, text. Lands in the MAR, the metrics and the labels."""
    model: Model
    """What is served."""
    serving: Serving = Serving()
    """How TorchServe runs it."""
    text: Text | None = None
    """How a language model writes; only for `handler: text`."""
    slo: Slo | None = None
    """How well it must serve; without it nothing is judged."""
    cost: Cost | None = None
    """What a pod costs, and what requests may cost; without it costs are not computed."""
    load: Load = Load()
    """What the load test and the readiness inference send."""
    scaling: Scaling = Scaling()
    """How many pods."""
    kubernetes: Kubernetes = Kubernetes()
    """Where it runs."""

    _file: Path = PrivateAttr(default=Path("spec.yaml"))
    _lines: Mapping[Location, int] = PrivateAttr(default={})

    @property
    def file(self) -> Path:
        """The file this was read from."""
        return self._file

    def place(self, *location: str | int) -> str:
        """A field as an error names it, with the line where it stands."""
        known = location
        while known and known not in self._lines:
            known = known[:-1]
        line = f":{self._lines[known]}" if known else ""
        return f"{self._file}{line}: `{'.'.join(map(str, location))}`"

    @property
    def cores(self) -> float:
        """The cpu limit of a pod, cores."""
        return quantity(self.kubernetes.resources.cpu)

    def path(self, relative: str) -> Path:
        """A path written in the spec: relative ones start at the spec's folder."""
        return self._file.parent / relative

    @property
    def workers(self) -> int:
        """Worker processes, `auto` resolved: a core for each thread; on cuda one a GPU."""
        if isinstance(self.serving.workers, int):
            return self.serving.workers
        if self.model.writes:
            return 1
        if self.serving.device == "cuda":
            return max(1, self.kubernetes.resources.gpu)
        return max(1, self._whole_cores // (self.serving.threads if isinstance(self.serving.threads, int) else 1))

    @property
    def threads(self) -> int:
        """Threads of each worker, `auto` resolved: what the cpu limit leaves for each."""
        if isinstance(self.serving.threads, int):
            return self.serving.threads
        return max(1, self._whole_cores // self.workers)

    @property
    def encoding(self) -> Encoding:
        """How an encoder reads texts, the defaults where the spec says nothing."""
        return self.model.encoding or Encoding()

    @property
    def max_batch(self) -> int:
        """Requests TorchServe may put in one batch, the default resolved."""
        if self.model.writes:
            return self.writing.slots + self.waiting + REFUSED_AT_ONCE
        return self.serving.max_batch or max(self.model.batch_sizes)

    @property
    def waiting(self) -> int:
        """Requests that may wait for a slot of a language model, the default resolved."""
        return self.writing.waiting or self.writing.slots

    @property
    def writing(self) -> Text:
        """How a language model writes, the defaults resolved."""
        text = self.text or Text()
        engine = text.engine
        if engine == "auto":
            engine = "aot" if self.model.compile == "aot" else "torch"
        changed: dict[str, Any] = {"engine": engine}
        if engine == "vllm":
            changed["vllm"] = text.vllm or Vllm()
        if text.prefill_chunk is None:
            changed["prefill_chunk"] = 2048 if engine == "vllm" else 256
        return text.model_copy(update=changed)

    @property
    def vllm(self) -> Vllm | None:
        """How vLLM is run, where it is what writes."""
        return self.writing.vllm if self.model.writes and self.writing.engine == "vllm" else None

    @property
    def worker_device(self) -> Literal["cpu", "cuda"]:
        """What the worker itself computes on: vLLM has processes of its own."""
        return self.serving.device if self.vllm is None else "cpu"

    @property
    def image_target(self) -> Literal["cpu", "cuda", "vllm"]:
        """Which of the images serves it."""
        return self.serving.device if self.vllm is None else "vllm"

    @property
    def redis(self) -> list[tuple[str, str | None, str]]:
        """Each Redis that pods ask: its address, the Secret of its password, the variable that the password is in."""
        sessions, cache = self.text.sessions if self.text else None, self.serving.cache
        used = [(cache.redis, cache.secret, "MARINA_REDIS_AUTH")] if cache and cache.redis else []
        return used + ([(sessions.redis, sessions.secret, "MARINA_SESSIONS_AUTH")] if sessions else [])

    @property
    def largest_batch_bytes(self) -> int:
        """What requests may take in a worker at most, beside the model: the bodies of a batch, and the decoding of one
        of them after another."""
        body_bytes = self.serving.max_request_mb * 1_000_000
        decoding_mb = _JSON_MB
        if self.model.handler not in ("tensor", "text"):
            image = self.model.image
            decoding_mb = image.max_decode_mb if image else Image.model_fields["max_decode_mb"].default
        # A picture in base64 is there as the body, as text and as bytes.
        return math.ceil((self.max_batch + 2) * body_bytes + decoding_mb * 1_000_000)

    @property
    def cache_bytes(self) -> int:
        """What the answers that workers keep may take, all together."""
        return round(self.workers * self.serving.cache.mb * 1_000_000) if self.serving.cache else 0

    @property
    def _whole_cores(self) -> int:
        return max(1, math.floor(self.cores))

    def uncompiled(self) -> Spec:
        """The spec as it is packaged without compiling and without whole numbers: slow, but at once."""
        precision = "fp32" if self.model.precision in ("int4", "int8") else self.model.precision
        if self.model.compile not in ("aot", "jit"):
            return self
        # Apart from classifiers, a language model runs without being exported.
        way = "eager" if self.model.writes else "export"
        changed = {"compile": way, "on_mismatch": "fail", "precision": precision}
        text = self.text and self.text.model_copy(update={"engine": "auto"} if self.text.engine == "aot" else {})
        return self.model_copy(update={"model": self.model.model_copy(update=changed), "text": text})

    def completed(self) -> dict[str, Any]:
        """The spec with every default and every `auto` that needs no measurement filled in, as plain data."""
        data = self.model_dump(mode="json")
        data["serving"] |= {"workers": self.workers, "threads": self.threads}
        if self.model.writes:
            data["text"] = self.writing.model_dump(mode="json") | {"waiting": self.waiting}
        else:
            data["serving"]["max_batch"] = self.max_batch
        return data
