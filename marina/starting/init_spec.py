"""Writes a spec to start from: the lines that users usually change, each with a comment on its values."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from marina.config.remote import parse_remote
from marina.config.sections import SAVED
from marina.config.spec import Fetched

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_COMMENTS_FROM = 40
_CORES = 2
# The objective of most models; slower models get one that they can meet.
_P99_MS, _RPS = 100, 20
_FIRST_MS, _GAP_MS, _WRITES_RPS = 2000, 250, 10
# For language models: how many bytes of weights two cores read in a second, at least (each step reads all of them), the
# tokens of the sample's answer, and the default of `text.slots`.
_BYTES_S, _TOKENS, _SLOTS = 5e9, 16, 16
# The p99 as a multiple of the time of one input, to leave time for queueing and for a busy machine.
_P99_FACTOR = 12


@dataclass(frozen=True)
class ModelFacts:
    """What `init` knows about a model: everything that goes into its spec."""

    source: str
    """`model.source` of the spec."""
    handler: str
    """`image`, `tensor`, `text` or `own`."""
    weights: str | None = None
    trust_pickle: bool = False
    picture: tuple[int, int, int] | None = None
    """Channels, rows and columns, if the model takes pictures."""
    inputs: dict[str, dict[str, Any]] | None = None
    """`model.inputs` of the spec; None for pictures, or if the source itself describes them."""
    outputs: tuple[str, ...] | None = None
    """The names of the outputs, if the model has names for them."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of the outputs, without the batch; empty if they are not known."""
    free_input: str | None = None
    """The input that works in other sizes, too, which nobody gave."""
    only_batch: int | None = None
    """The only batch size that the model takes; None if it takes any."""
    compile: str = "aot"
    top_k: int = 5
    template: str | None = None
    files: tuple[str, ...] = ()
    task: str | None = None
    """What is answered for a text or a picture."""
    activation: str | None = None
    detection: dict[str, Any] | None = None
    image: dict[str, Any] = field(default_factory=dict)
    """Fields of `model.image` beside its size."""
    image_said: str | None = None
    """What says these fields; None if nothing does."""
    longest: int | None = None
    """Most tokens of a text, or of a language model's context."""
    buckets: str = "dynamic"
    embedding: str = ""
    """The fields that say how an embedding is made, if not as by default."""
    mask: str | None = None
    """What stands in a text for a token that is to be filled in, if the model's folder says so."""
    weight_bytes: int = 0
    """The size of a language model's weights."""
    vllm: bool = False
    """Whether a language model needs vLLM, because Marina's own engines do not compute it."""
    row_ms: float | None = None
    """The processor time of one input on this machine, uncompiled; None if it was not tried."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the choices that were made."""
    fetched: Mapping[str, Fetched] = field(default_factory=dict)
    """The sources that lie elsewhere, by their text."""

    @property
    def writes(self) -> bool:
        """Whether it is a language model."""
        return self.handler == "text" and self.task is None


def spec_text(name: str, facts: ModelFacts, sample: str) -> str:
    lines = [
        ("# yaml-language-server: $schema=spec.schema.json", ""),
        (f"# {name}: what is served, and how well. `marina check --fields` explains every field.", ""),
        (f"name: {name}", "names the MAR, the image and every object"),
        ('version: "1.0"', ""),
        ("model:", ""),
        (f"  source: {_path(facts.source)}", "torchvision:NAME | ./file.py:NAME | ./program.pt2 | hf:./folder"),
        *_weights(facts),
        *_trust(facts),
        (f"  handler: {_handler(facts)}", "audio | image | tensor | text | ./handler.py:Class"),
        *_files(facts),
        *_inputs(facts),
        *_compiled(facts),
        ("serving:", ""),
        (f"  device: {'cuda' if facts.vllm else 'cpu'}", "cpu | cuda"),
        *_workers(facts),
        ("slo:", "what the load test judges and the alerts watch"),
        *_limits(facts),
        (f"  error_rate: {0.01 if facts.writes else 0.001}", ""),
        (f"  throughput_rps: {_throughput_rps(facts):g}", "the rate that one pod must hold"),
        ("load:", ""),
        (f"  sample: ./{sample}", "what the load test and the readiness inference send"),
        ("kubernetes:", ""),
        ("  namespace: marina", ""),
        ("  registry: registry.local/marina", "where the image is pushed"),
        (f'  resources: {{cpu: "{_CORES}"{", gpu: 1" if facts.vllm else ""}}}', "of one pod"),
    ]
    return "".join(f"{text:<{_COMMENTS_FROM}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _workers(facts: ModelFacts) -> list[tuple[str, str]]:
    if facts.writes:
        longest_s = (_first_ms(facts) + _max_tokens(facts) * _gap_ms(facts)) / 1000
        return [
            ("  threads: auto", "of its only worker; auto: one for each core of `cpu` below"),
            (f"  drain_timeout_s: {math.ceil(longest_s)}", "how long a stop waits for unfinished answers"),
        ]
    return [
        ("  workers: auto", "processes; auto: one for each core of `cpu` below"),
        ("  max_batch_delay_ms: 2", "how long a request waits for others to share its batch"),
    ]


def _limits(facts: ModelFacts) -> list[tuple[str, str]]:
    if facts.writes:
        return [
            (f"  ttft_p99_ms: {_first_ms(facts)}", "99 of 100 answers begin within this time"),
            (f"  itl_p99_ms: {_gap_ms(facts)}", "from one piece of text to the next, 99 of 100"),
            ("  goodput: 0.95", "share of requests that meet both"),
        ]
    time = f"; one takes {facts.row_ms:.0f} ms here, not compiled" if _p99_ms(facts) > _P99_MS else ""
    return [(f"  p99_ms: {_p99_ms(facts)}", f"99 of 100 requests are answered within this time{time}")]


def _p99_ms(facts: ModelFacts) -> int:
    return _at_least(_P99_MS, _P99_FACTOR * (facts.row_ms or 0))


def _at_least(usual_ms: int, needed_ms: float) -> int:
    """The usual limit; for a slow model, the limit that it needs, rounded up to a multiple of 50."""
    return max(usual_ms, math.ceil(needed_ms / 50) * 50)


def _first_ms(facts: ModelFacts) -> int:
    return _at_least(_FIRST_MS, 20 * _step_ms(facts))


def _gap_ms(facts: ModelFacts) -> int:
    return _at_least(_GAP_MS, 4 * _step_ms(facts))


def _max_tokens(facts: ModelFacts) -> int:
    return min(512, (facts.longest or 0) // 2)


def _step_ms(facts: ModelFacts) -> float:
    """The time of one step, which writes a token of every answer, at most."""
    return facts.weight_bytes / _BYTES_S * 1000


def _throughput_rps(facts: ModelFacts) -> float:
    """The usual rate, or what half of a pod's cores can hold if that is less."""
    if facts.writes:
        held = 1000 * _SLOTS / (2 * _TOKENS * _step_ms(facts)) if facts.weight_bytes else _WRITES_RPS
        return max(1, min(_WRITES_RPS, math.floor(held)))
    half = _CORES / 2 * 1000 / facts.row_ms if facts.row_ms else _RPS
    return min(_RPS, math.floor(half) if half >= 1 else float(f"{half:.1g}"))


def _handler(facts: ModelFacts) -> str:
    return "./handler.py:OwnHandler" if facts.handler == "own" else facts.handler


def _path(text: str) -> str:
    """A path as YAML: in quotes if a part of it would be a comment or a key."""
    return json.dumps(text, ensure_ascii=False) if re.search(r"\s#|:\s", text) else text


def _files(facts: ModelFacts) -> list[tuple[str, str]]:
    return [(f"  files: [{', '.join(facts.files)}]", "what the handler reads")] if facts.files else []


def _weights(facts: ModelFacts) -> list[tuple[str, str]]:
    remote = parse_remote(facts.source)
    holds_them = facts.source.startswith("hf:") or (remote is not None and remote.is_folder)
    if holds_them or facts.source.endswith((".pt2", *SAVED)):
        return []
    names = "IMAGENET1K_V1 | " if facts.source.startswith("torchvision:") else ""
    return [(f"  weights: {_path(facts.weights or 'random')}", f"{names}./weights.safetensors; random is seeded")]


def _trust(facts: ModelFacts) -> list[tuple[str, str]]:
    return [("  trust_pickle: true", "loading the file runs code that it names")] if facts.trust_pickle else []


def _compiled(facts: ModelFacts) -> list[tuple[str, str]]:
    if facts.writes:
        own = [
            ("  precision: bf16", "fp32 | bf16 | int8 | int4"),
            ("  compile: aot", "aot: compiled now | eager: not compiled, slower, fp32 or bf16"),
            ("text:", ""),
        ]
        vllm = [
            ("  precision: bf16", "fp32 | fp16 | bf16"),
            ("  compile: eager", ""),
            ("text:", ""),
            ("  engine: vllm", "has to be installed where the model is served"),
        ]
        return [
            *(vllm if facts.vllm else own),
            (f"  context: {facts.longest}", "tokens of prompt and answer"),
            (f"  max_tokens: {_max_tokens(facts)}", "tokens of the longest answer"),
        ]
    if facts.handler == "audio":
        how = "Marina's own Whisper" if facts.compile == "eager" else "aot: compiled now | export: not compiled"
        return [("  precision: fp32", "fp32 | bf16"), (f"  compile: {facts.compile}", how)]
    why = "eager: it cannot be exported, and runs uncompiled" if facts.compile == "eager" else ""
    return [
        ("  precision: fp32", "cpu: fp32 | bf16 | int8; cuda: fp32 | fp16 | bf16"),
        (f"  compile: {facts.compile}", why or "aot: compiled now | jit: at each start | export, eager: not compiled"),
        (f"  batch_sizes: [{facts.only_batch or '1, 4'}]", "a batch is cut and padded to these"),
        ("  # calibration: ./calibration", "real inputs: int8 needs them, and every artifact is checked on them"),
    ]


def _inputs(facts: ModelFacts) -> list[tuple[str, str]]:
    """The lines about the model's inputs and outputs, if its source does not describe them itself."""
    if facts.handler == "audio":
        return [(f"  task: {facts.task}", ""), ("  max_seconds: 30", "longer sounds are refused")]
    if facts.handler == "text" and facts.task is not None:
        embedding = facts.embedding if facts.task == "embed" else ""
        return [
            (f"  task: {facts.task}", "answer | classify | embed | fill | rerank | tokens"),
            (
                f"  encoding: {{max_tokens: {facts.longest}, buckets: {facts.buckets}{embedding}}}",
                "`truncate: right` cuts off the end of longer texts",
            ),
        ]
    named = [(f"  outputs: {flow_yaml(facts.outputs)}", "")] if facts.outputs else []
    if facts.picture is not None:
        return [*_task(facts), *named, *_image(facts, facts.picture)]
    if facts.inputs is None:
        return named
    given = [
        (f"    {flow_yaml(name)}: {flow_yaml(tensor)}", "without the batch; `min` and `max` limit it")
        for name, tensor in facts.inputs.items()
    ]
    return [("  inputs:", "by name, in the order of the model's arguments"), *given, *named]


def _image(facts: ModelFacts, picture: tuple[int, int, int]) -> list[tuple[str, str]]:
    labels = [("  # labels: ./labels.txt", "imagenet | a file with one label on each line")]
    if facts.source.startswith("torchvision:") and not facts.image:
        return labels
    if facts.source.startswith(("hf:", "timm:")) and not facts.image:
        return []
    channels, height, width = picture
    fields: dict[str, Any] = {"height": height, "width": width}
    if channels == 1:
        fields["channels"] = 1
    fields |= facts.image or ({"mean": _MEAN, "std": _STD} if channels == 3 else {})
    if facts.top_k < 5:
        fields["top_k"] = facts.top_k
    scaled = f"pixels are divided by 255{', then normalised' if 'mean' in fields else ''}"
    if facts.image_said is None:
        unsaid = "with ImageNet's `mean` and `std`" if "mean" in fields else "not normalised"
        scaled = f"{unsaid}, which nothing of the model says: change this if it was trained otherwise"
    return [
        (f"  image: {flow_yaml(fields)}", scaled),
        *(labels if facts.task in (None, "classify", "detect") else []),
    ]


def _task(facts: ModelFacts) -> list[tuple[str, str]]:
    """The lines that say what the outputs of a model of pictures mean."""
    if facts.task is None or facts.handler != "image":
        return []
    lines = [(f"  task: {facts.task}", "classify | detect | embed | segment")]
    if facts.activation is not None:
        lines.append((f"  activation: {facts.activation}", "makes scores of its numbers: softmax | sigmoid | none"))
    if facts.detection is not None:
        lines.append((f"  detection: {flow_yaml(facts.detection)}", "what its boxes and classes mean"))
    return lines


def flow_yaml(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {flow_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(flow_yaml, value))}]"
    # A name such as `on` without quotes is a truth value.
    return value if isinstance(value, str) and yaml.safe_load(value) == value else json.dumps(value)
