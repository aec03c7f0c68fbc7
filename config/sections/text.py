"""The section of a spec about how a language model writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.sections.section import Count, HeaderName, Name, ObjectName, RedisUrl, Section, Url
from config.sections.vllm import Vllm


class TextRoute(Section):
    """A small model that answers short prompts instead of this one."""

    to: Name
    """The name of another spec's language model, whose tokens need not be the same. Read by the worker; lands in the
    NetworkPolicy."""
    short_tokens: Count = 30
    """Prompts of so many tokens and fewer are sent to it. Read by the worker."""
    url: Url | None = None
    """Its address; default: `http://TO:8080`, the Service of that release in the same namespace. Read by the worker;
    lands in the NetworkPolicy."""
    patience_ms: Annotated[float, Field(gt=0, le=600_000)] = 2000
    """How long its first text may take, ms; after that, or if it cannot be reached or refuses, this model answers. Read
    by the worker."""

    @property
    def address(self) -> str:
        """What it is asked at."""
        return f"{(self.url or f'http://{self.to}:8080').rstrip('/')}/predictions/{self.to}"


class TextSessions(Section):
    """Where conversations are kept, so that clients send only what is new, and any pod can continue."""

    redis: RedisUrl
    """A Redis that all pods share, `redis://HOST:PORT/NUMBER`, `rediss://…` with TLS. Requests that name a conversation
    need it: without it they get 503. Its password is in the variable `MARINA_SESSIONS_AUTH` of the server, never here.
    Read by the worker; lands in the NetworkPolicy."""
    secret: ObjectName | None = None
    """A Secret whose key `password` is the password of `redis`. Lands in the Deployment as `MARINA_SESSIONS_AUTH`."""
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 3600
    """How long after its last answer a conversation is kept, s. Read by the worker."""
    max_kb: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Largest size of one conversation as JSON, kB of 1,000 bytes; a request that would make it larger is refused with
    400. Read by the worker."""


class Text(Section):
    """How a language model writes."""

    engine: Literal["aot", "auto", "fake", "torch", "vllm"] = "auto"
    """aot: computes the model by a library compiled for the processor, with `compile: aot`; torch: by torch, with
    `compile: eager`; vllm: by a vLLM in a Python of its own, with `compile: eager`; auto: aot or torch, by what
    `compile` says; fake: says the prompt again, one token every `step_ms`, to try and measure what is around an engine.
    Lands in the record of the MAR."""
    context: Count = 2048
    """Most tokens of a prompt and its answer together. Lands in the record; each of the `slots` takes memory for so
    many."""
    slots: Count = 16
    """Answers that are written at the same time. Lands in the record, and with `waiting` in `batchSize`."""
    waiting: Count | None = None
    """Requests that may wait for a slot, those of interactive clients and short prompts first; further ones get 503
    with `Retry-After`; default: as many as `slots`. Lands in the record, and with `slots` in `batchSize`."""
    prefill_chunk: Count | None = None
    """So many tokens of prompts are read in one step, a piece of a long one or several short ones, so that the answers
    of others go on; default: 256, of `vllm` 2048. Lands in the record."""
    max_tokens: Count = 512
    """Longest answer, and what is written where a request names no `max_tokens`, tokens. Lands in the record."""
    max_perplexity: Annotated[float, Field(gt=1)] | None = None
    """Highest perplexity that the texts of `model.calibration` may have for the model in fp32; with a higher one, no
    MAR is written. Default: that of guessing, which is the number of the model's tokens. Read by `marina package`."""
    route: TextRoute | None = None
    """Sends short prompts to a small model that is served elsewhere; default: all are answered here."""
    sessions: TextSessions | None = None
    """Keeps the conversations that clients name; default: clients send all messages each time."""
    priority_header: HeaderName = "X-Priority"
    """The header by which a request says how urgent it is: `interactive`, which is the default, or `batch`, which waits
    while an interactive one waits, ten seconds at most; any other value is refused with 400. Lands in the record."""
    flush_ms: Annotated[float, Field(ge=0, le=1000)] = 20
    """The text of an answer is sent at most once in this time, except for its beginning and its end, ms. Lands in the
    record."""
    step_ms: Annotated[float, Field(gt=0)] = 20
    """What a step of the `fake` engine takes, ms. Lands in the record."""
    speculation: Literal["auto", "off"] = "auto"
    """auto: where a text repeats itself, the compiled engine guesses the next tokens and checks several in one step, as
    long as that is faster; the answers are the same. off: one token in each step. Lands in the record."""
    vllm: Vllm | None = None
    """How vLLM is run, for `engine: vllm`."""
