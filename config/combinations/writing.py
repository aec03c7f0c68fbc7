"""Rules about language models: their folders, their engines, and how much they write."""

from collections.abc import Iterator
from os.path import isdir

from marina.config.combinations.rule import FILES, Conflicts, rule
from marina.config.errors import listed
from marina.config.hf_folder import FolderRefused, read_model_folder
from marina.config.spec import Spec

# How long a step of the engine `fake` takes, which computes nothing.
_FAKE_STEP_S = 0.02
# The value of `compile` that each engine needs.
_COMPILE_OF_ENGINE = {"aot": "aot", "torch": "eager", "vllm": "eager"}


@rule("model", "serving.max_batch", "serving.max_worker_memory_mb", "text")
def _only_a_writer_has_slots(spec: Spec) -> Conflicts:
    if not spec.model.writes:
        if spec.text is not None:
            yield "text", f"not for the `{spec.model.handler}` handler, which does not write text", "delete `text`"
        return
    if spec.serving.max_batch is not None:
        yield "serving.max_batch", "not for a language model, which has slots", "delete it, and set `text.slots`"
    if spec.serving.max_worker_memory_mb is not None:
        text = "not for a language model, whose worker never has a moment without open answers to restart in"
        yield "serving.max_worker_memory_mb", text, "delete `max_worker_memory_mb`"


@rule("model.handler", "model.precision", "model.compile", "text.engine", "serving.device")
def _engine_fits_the_model(spec: Spec) -> Conflicts:
    model, serving = spec.model, spec.serving
    if not model.writes:
        return
    if spec.vllm is not None:
        allowed: tuple[str, ...] = ("bf16", "fp16", "fp32")
    else:
        allowed = ("bf16", "fp32", "int4", "int8") if model.compile == "aot" else ("bf16", "fp32")
    if model.precision not in allowed:
        text = f"got `{model.precision}`, allowed for the `text` handler with `compile: {model.compile}`: "
        yield "model.precision", text + listed(allowed), "compile: aot" if model.precision in ("int4", "int8") else None
    if model.compile not in ("aot", "eager"):
        text = f"got `{model.compile}`, allowed for the `text` handler: `aot`, `eager`"
        yield "model.compile", text, "compile: aot"
    elif spec.writing.engine in _COMPILE_OF_ENGINE and model.compile != _COMPILE_OF_ENGINE[spec.writing.engine]:
        needed = f"compile: {_COMPILE_OF_ENGINE[spec.writing.engine]}"
        yield "text.engine", f"got `{spec.writing.engine}`, which needs `{needed}`", f"delete `engine`, or {needed}"
    if serving.device != "cpu" and spec.vllm is None:
        text = f"got `{serving.device}`, allowed for the `text` handler: `cpu`, or the engine `vllm`"
        yield "serving.device", text, "device: cpu, or engine: vllm under `text`"
    if spec.workers > 1:
        text = f"got {spec.workers}, allowed for the `text` handler: 1, because one would keep the others waiting"
        yield "serving.workers", text, "workers: 1, with more `threads`"


@rule("model.handler", "text")
def _answers_fit_the_context(spec: Spec) -> Conflicts:
    text = spec.writing
    if spec.model.writes and text.max_tokens >= text.context:
        reason = f"got {text.max_tokens}, but prompt and answer together have {text.context} tokens, `text.context`"
        yield "text.max_tokens", reason, "raise `text.context`, or lower `text.max_tokens`"


@rule("model.handler", "text", "serving.drain_timeout_s")
def _a_drain_lets_answers_end(spec: Spec) -> Conflicts:
    if not spec.model.writes or spec.writing.engine != "fake":
        return
    needed_s = spec.writing.max_tokens * _FAKE_STEP_S
    if spec.serving.drain_timeout_s < needed_s:
        text = f"got {spec.serving.drain_timeout_s:g}, but the longest answer takes {needed_s:g} s"
        yield "serving.drain_timeout_s", text, "raise it, or lower `text.max_tokens`"


def writer_warnings(spec: Spec) -> Iterator[str]:
    """Settings of a language model that are allowed but look like a mistake."""
    if not spec.model.writes or spec.slo is None or spec.slo.itl_p99_ms is None:
        return
    longest_s = ((spec.slo.ttft_p99_ms or 0) + spec.slo.itl_p99_ms * spec.writing.max_tokens) / 1000
    if longest_s > spec.serving.drain_timeout_s:
        yield (
            f"`serving.drain_timeout_s`: {spec.serving.drain_timeout_s:g}, but within the objective an answer of "
            f"{spec.writing.max_tokens} tokens, `text.max_tokens`, may take {longest_s:.0f} s: a stop would cut it off"
        )


@rule("model.handler", "slo", "scaling.metric")
def _text_objectives_need_a_language_model(spec: Spec) -> Conflicts:
    if not spec.model.writes:
        if spec.scaling.metric == "waiting":
            text = f"got `waiting`, but the `{spec.model.handler}` handler has no slots to wait for"
            yield "scaling.metric", text, "metric: requests"
        for field in ("ttft_p99_ms", "itl_p99_ms", "goodput"):
            if getattr(spec.slo, field, None) is not None:
                text = f"not for the `{spec.model.handler}` handler, which does not write text"
                yield f"slo.{field}", text, f"delete `{field}`"


@rule("name", "text.route", "text.context")
def _route_leads_to_another_model(spec: Spec) -> Conflicts:
    route = spec.text.route if spec.text else None
    if route is None:
        return
    if route.to == spec.name:
        yield "text.route.to", f"got `{route.to}`, which is this model", "the name of another one"
    if route.short_tokens >= spec.writing.context:
        text = f"got {route.short_tokens}, but no prompt is longer than `text.context`, {spec.writing.context}"
        yield "text.route.short_tokens", text, "fewer, or serve the small model alone"


@rule("model.handler", "load.sample")
def _sample_is_json(spec: Spec) -> Conflicts:
    if spec.model.writes and spec.load.sample and not spec.load.sample.endswith(".json"):
        yield "load.sample", f"got `{spec.load.sample}`, allowed for the `text` handler: a `.json` file", None


@rule("model.source", "model.handler", "text", into=FILES)
def _the_folder_holds_a_language_model(spec: Spec) -> Conflicts:
    if not spec.model.writes or spec.model.folder is None or not isdir(spec.path(spec.model.folder)):
        return
    try:
        folder = read_model_folder(spec.path(spec.model.folder), weights=spec.writing.engine != "fake")
    except FolderRefused as err:
        yield "model.source", str(err), err.hint
        return
    longest = folder.longest
    if spec.writing.engine != "fake" and longest is not None and spec.writing.context > longest:
        text = f"got {spec.writing.context}, but the model was made for {longest} tokens"
        yield "text.context", text, f"context: {longest}"
    window = folder.window
    if spec.writing.engine not in ("fake", "vllm") and window is not None and spec.writing.context > window:
        text = f"got {spec.writing.context}, but the model's attention reaches back only {window} tokens"
        yield "text.context", text, f"context: {window}, or `engine: vllm`"
