"""The section of a spec about how a language model writes."""

from typing import Annotated, Literal

from pydantic import Field

from marina.config.sections.section import Count, HeaderName, Name, ObjectName, OrOff, RedisUrl, Section, Url
from marina.config.sections.vllm import Vllm


class TextRoute(Section):
    """A small model that answers short prompts instead of this one."""

    to: Name
    """The name of another spec's language model; it may have another tokenizer. Read by the worker; lands in the
    NetworkPolicy."""
    short_tokens: Count = 30
    """Prompts of up to this many tokens are sent to it. Read by the worker."""
    url: Url | None = None
    """Its address; default: `http://TO:8080`, the Service of that release in the same namespace. Read by the worker;
    lands in the NetworkPolicy."""
    patience_ms: Annotated[float, Field(gt=0, le=600_000)] = 2000
    """How long its first text may take, ms; after that, or if it cannot be reached or refuses, this model answers. Read
    by the worker."""

    @property
    def address(self) -> str:
        """The URL that prompts are sent to."""
        return f"{(self.url or f'http://{self.to}:8080').rstrip('/')}/predictions/{self.to}"


class TextSessions(Section):
    """Where conversations are stored, so that clients send only new messages, and any pod can continue."""

    redis: RedisUrl
    """A Redis that all pods share, `redis://HOST:PORT/NUMBER`, `rediss://…` with TLS. If it does not answer, requests
    that name a conversation get 503. Its password is in the server's variable `MARINA_SESSIONS_AUTH`, never here. Read
    by the worker; lands in the NetworkPolicy."""
    secret: ObjectName | None = None
    """A Secret whose key `password` is the password of `redis`. Lands in the Deployment as `MARINA_SESSIONS_AUTH`."""
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 3600
    """How long a conversation is kept after its last answer, s. Read by the worker."""
    max_kb: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Largest size of one conversation as JSON, kB of 1,000 bytes; a request that would make it larger is refused with
    400. Read by the worker."""


class Text(Section):
    """How a language model writes."""

    engine: Literal["aot", "auto", "fake", "torch", "vllm"] = "auto"
    """What computes the tokens. aot: a library compiled for the processor, with `compile: aot`; torch: torch, with
    `compile: eager`; vllm: vLLM, in a Python of its own, with `compile: eager`; auto: aot or torch, according to
    `compile`; fake: nothing is computed, the prompt is repeated, one token every `step_ms`, to try and measure
    everything around an engine. Lands in the record of the MAR."""
    context: Count = 2048
    """Most tokens of a prompt and its answer together. Lands in the record; each of the `slots` takes memory for that
    many."""
    slots: Count = 16
    """How many answers are written at the same time. Lands in the record, and with `waiting` in `batchSize`."""
    waiting: Count | None = None
    """How many requests may wait for a slot; interactive clients and short prompts go first, and further requests get
    503 with `Retry-After`; default: as many as `slots`. Lands in the record, and with `slots` in `batchSize`."""
    prefill_chunk: Count | None = None
    """How many tokens of prompts are read in one step, a piece of a long prompt or several short ones, so that other
    answers go on meanwhile; default: 256, or 2048 for `vllm`. Lands in the record."""
    max_tokens: Count = 512
    """Longest answer, tokens; also the default for requests without `max_tokens`. Lands in the record."""
    max_perplexity: Annotated[float, Field(gt=1)] | None = None
    """Highest perplexity of the fp32 model on the texts of `model.calibration`; if it is higher, no MAR is written.
    Default: that of guessing, which is the size of the model's vocabulary. Read by `marina package`."""
    route: TextRoute | None = None
    """Sends short prompts to a small model that is served elsewhere; default: this model answers all of them."""
    sessions: TextSessions | None = None
    """Stores the conversations that clients name; default: clients send all messages each time."""
    priority_header: HeaderName = "X-Priority"
    """The header that says how urgent a request is: `interactive`, the default, or `batch`, which waits while an
    interactive one waits, ten seconds at most; any other value is refused with 400. Lands in the record."""
    flush_ms: Annotated[float, Field(ge=0, le=1000)] = 20
    """The text of an answer is sent at most once in this time, except for its beginning and its end, ms. Lands in the
    record."""
    step_ms: Annotated[float, Field(gt=0)] = 20
    """How long a step of the `fake` engine takes, ms. Lands in the record."""
    speculation: Annotated[Literal["auto", "off"], OrOff] = "auto"
    """auto: where a text repeats itself, the compiled engine guesses the next tokens and checks several of them in one
    step, as long as that is faster; the answers are the same. off: one token in each step. Lands in the record."""
    vllm: Vllm | None = None
    """How vLLM is run, for `engine: vllm`."""
