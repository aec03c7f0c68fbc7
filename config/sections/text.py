"""The section of a spec about how a language model writes."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from marina.config.sections.section import Count, RedisUrl, Section, check_port, matching
from marina.config.sections.vllm import Vllm

RouteTarget = Annotated[
    str,
    matching(
        r"^([a-z]([-a-z0-9]{0,38}[a-z0-9])?|https?://[^\s/?#@]+(/[^\s?#]*)?/predictions/[^\s/?#]+)$",
        "the name of a model, or an address such as `http://HOST:8080/predictions/NAME`",
    ),
    AfterValidator(lambda to: check_port(to) if "://" in to else to),
]


class TextRoute(Section):
    """A small model that answers short prompts instead of this one."""

    to: RouteTarget
    """The name of another spec's language model, which is asked at its Service in the same namespace, or an address,
    `http://HOST:PORT/predictions/NAME`; it may have another tokenizer. Read by the worker; lands in the
    NetworkPolicy."""
    short_tokens: Count = 30
    """Prompts of up to this many tokens are sent to it. Read by the worker."""

    @property
    def address(self) -> str:
        """The URL that prompts are sent to."""
        return self.to if "://" in self.to else f"http://{self.to}:8080/predictions/{self.to}"


class TextSessions(Section):
    """Where conversations are stored, so that clients send only new messages, and any pod can continue."""

    redis: RedisUrl
    """A Redis that all pods share, `redis://HOST:PORT/NUMBER`, `rediss://…` with TLS. If it does not answer, requests
    that name a conversation get 503. Its password is in the server's variable `MARINA_SESSIONS_AUTH`, never here: a
    Secret with that key in `kubernetes.pod.env_from`. Read by the worker; lands in the NetworkPolicy."""
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 3600
    """How long a conversation is kept after its last answer, s. Read by the worker."""


class Text(Section):
    """How a language model writes."""

    engine: Literal["aot", "auto", "fake", "torch", "vllm"] = "auto"
    """What computes the tokens. aot: a library compiled for the processor, with `compile: aot`; torch: torch, with
    `compile: eager`; vllm: vLLM, in a Python of its own, with `compile: eager`; auto: aot or torch, according to
    `compile`; fake: nothing is computed, the prompt is repeated, one token every 20 ms, to try and measure
    everything around an engine. Lands in the record of the MAR."""
    context: Count = 2048
    """Most tokens of a prompt and its answer together. Lands in the record; each of the `slots` takes memory for that
    many."""
    slots: Count = 16
    """How many answers are written at the same time. Lands in the record, and with `waiting` in `batchSize`."""
    max_tokens: Count = 512
    """Longest answer, tokens; also the default for requests without `max_tokens`. Lands in the record."""
    tools: Literal["auto", "granite", "hermes", "llama", "mistral", "pythonic"] = "auto"
    """The form in which the model calls tools. auto: as its chat template tells; the others are for a template that
    does not: granite, Granite 3; hermes, Hermes and Qwen; llama, Llama 3 as JSON; mistral, Mistral; pythonic, Llama 4.
    Lands in the record."""
    route: TextRoute | None = None
    """Sends short prompts to a small model that is served elsewhere; default: this model answers all of them."""
    sessions: TextSessions | None = None
    """Stores the conversations that clients name; default: clients send all messages each time."""
    vllm: Vllm | None = None
    """How vLLM is run, for `engine: vllm`."""
