"""Stages a language model's files unchanged, and compares what the package's engine writes with what the model,
computed as a whole in fp32, would write."""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from marina.archiver.native import compile_decoder
from marina.archiver.staging import PROMPT, extend_draft, start_draft
from marina.config.errors import AgreementError, SourceError, listed
from marina.config.hf_folder import CONFIG, TOKENIZER, TOKENIZER_CONFIG, FolderRefused, ModelFolder, read_model_folder
from marina.config.machine import free_memory
from marina.config.record import Agreement, Artifact, Draft, Writing
from marina.config.spec import Spec
from marina.handlers.generation.dialects.choosing import ChatForm
from marina.handlers.generation.engine import Engine, NoToken, Sampling, Token
from marina.handlers.generation.engines import make_engine
from marina.handlers.generation.engines.compiled import LIBRARY
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.shape import OtherFamily, UnknownModel
from marina.handlers.generation.engines.vllm_engine import fingerprint_files
from marina.handlers.generation.engines.weights import check_weights, weight_files
from marina.handlers.generation.parameters import DEFAULTS
from marina.handlers.generation.prompts import Conversation, Prompts, TemplateRefused
from marina.handlers.generation.tokenizer import ModelTokenizer, template_source
from marina.handlers.record import TextSpec, parse_record

FOLDER, _GENERATION = "model", "generation_config.json"
# What no spec changes, but measurements do.
TUNED: dict[str, Any] = {"flush_ms": 20, "step_ms": 20, "speculation": "auto"}
# How many tokens of prompts are read in one step, a piece of a long one or several short ones.
_PREFILL, _VLLM_PREFILL = 256, 2048
# For the comparison the model writes this many texts of this many tokens, each with its own seed.
_TEXTS, _LENGTH = 8, 96
# The text to measure the perplexity on if the spec has no calibration: something that any language model should know.
_PLAIN_ENGLISH = (
    f"{PROMPT} there was a fisher who lived by the harbour. One morning she found a silver key in the sand, and nobody "
    "knew whose it was."
)
_NOT_FINITE = "the model's scores are not finite numbers: its weights are broken; no MAR was written"
_DIFFERS_ALONE = "the compiled decoder writes a different text alone than in a batch; no MAR was written"
# The perplexity is measured on this many tokens at most: more would hardly change it, and would take minutes.
_MOST_TOKENS = 4096
# They are read in pieces of this size, to bound the memory for scores: each token has one for the whole vocabulary.
_TOKENS_AT_ONCE = 256


def stage_language_model(spec: Spec, staged: Path) -> Draft:
    """Stages a language model's files, and returns its record as far as it is known before the comparison."""
    folder, ends = _stage_folder(spec, staged / FOLDER)
    chosen = {"engine", "context", "slots", "max_tokens", "tools", "vllm"}
    settings = spec.writing.model_dump(include=chosen) | {"waiting": spec.waiting}
    settings |= TUNED | {"prefill_chunk": _VLLM_PREFILL if spec.vllm else _PREFILL}
    if spec.vllm is not None:
        settings["vllm"]["files"] = fingerprint_files(folder.files) if spec.vllm.weights is not None else {}
    writing = Writing(folder=FOLDER, ends=ends, defaults=_defaults(staged / FOLDER, spec), **settings)
    artifacts = []
    if writing.engine == "aot":
        compile_decoder(spec.model.cpu_target, staged / FOLDER / LIBRARY)
        artifacts.append(Artifact(file=f"{FOLDER}/{LIBRARY}", batch=writing.slots))
    return extend_draft(start_draft(spec, None, staged), text=writing, artifacts=tuple(artifacts))


def _stage_folder(spec: Spec, into: Path) -> tuple[ModelFolder, tuple[int, ...]]:
    """Copies the model's folder; returns it with the tokens that end an answer."""
    where, computed = f"{spec.file}: `model.source`", spec.writing.engine != "fake"
    packs_weights = computed and (spec.vllm is None or spec.vllm.weights is None)
    try:
        folder = read_model_folder(spec.path(spec.model.folder or ""), weights=computed)
        into.mkdir()
        weights = weight_files(folder.path) if packs_weights else []
        for file in (*(file for file in folder.files if file.suffix != ".safetensors"), *weights):
            if file.is_file():
                shutil.copy(file, into / file.name)
        ends = _end_tokens(folder, into, ModelTokenizer(into))
        _check_template(into)
        if computed and spec.vllm is None:
            check_weights(into)
    except FolderRefused as err:
        raise SourceError(f"{where}: {err}", hint=err.hint) from err
    except (UnknownModel, TemplateRefused, ValueError, RecursionError) as err:
        hint = "engine: vllm under `text`, with `compile: eager`" if isinstance(err, OtherFamily) else None
        raise SourceError(f"{where}: `{spec.model.folder}`: {err}", hint=hint) from err
    return folder, ends


def _end_tokens(folder: ModelFolder, staged: Path, tokens: ModelTokenizer) -> tuple[int, ...]:
    """The tokens that end an answer, from `generation_config.json` if it names any: chat models have more of them
    there."""
    where, given = CONFIG, folder.config.get("eos_token_id")
    if (staged / _GENERATION).is_file():
        config = json.loads((staged / _GENERATION).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise UnknownModel(f"`{_GENERATION}` is not a JSON object")
        if config.get("eos_token_id") is not None:
            where, given = _GENERATION, config["eos_token_id"]
    ends = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(end) is int and 0 <= end < 2**31 and tokens.has(end) for end in ends):
        got = json.dumps(given)[:80]
        raise UnknownModel(f"`eos_token_id` in `{where}`: got `{got}`, allowed: tokens of `{TOKENIZER}`")
    return tuple(ends)


def _defaults(folder: Path, spec: Spec) -> dict[str, float]:
    """What `generation_config.json` says for parameters that a request leaves out."""
    if not (folder / _GENERATION).is_file():
        return {}
    config = json.loads((folder / _GENERATION).read_text(encoding="utf-8"))
    given = {name: config[name] for name in DEFAULTS if config.get(name) is not None}
    for name, value in given.items():
        low, high = DEFAULTS[name]
        if type(value) not in (int, float) or not low <= value <= high:
            text = f"{spec.file}: `model.source`: `{name}` in `{_GENERATION}`: got `{json.dumps(value)[:80]}`"
            raise SourceError(f"{text}, allowed: a number from {low:g} to {high:g}")
    return given


def _check_template(folder: Path) -> str | None:
    """Why the chat template refuses a conversation of one message; None if it does not, or if there is none. Raises
    TemplateRefused if it cannot be read. It is rendered as in a server, with the same limits."""
    if template_source(folder) is None:
        return None
    with closing(Prompts(folder, limit=_MOST_TOKENS)) as prompts:
        try:
            prompts.read(Conversation([{"role": "user", "content": PROMPT}]))
        except TemplateRefused as err:
            if err.is_broken:
                raise
            return err.reason
    return None


def folder_warnings(draft: Draft, staged: Path) -> Iterator[str]:
    """Warnings about what is allowed but looks like a mistake in the model's folder."""
    tokens = ModelTokenizer(staged / FOLDER)
    if tokens.missing:
        yield (
            f"`{TOKENIZER}` has no {listed(tokens.missing)}, which `{TOKENIZER_CONFIG}` adds: prompts will have each "
            "as plain text. This writes both files anew: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    template = template_source(staged / FOLDER)
    if template is not None and draft.text is not None:
        form = ChatForm.of(template, draft.text.tools)
        if form.has_tools and form.dialect is None:
            yield (
                "the chat template shows tools, but not in a form that is known, and requests with tools will get 400: "
                "name the form as `text.tools`"
            )
    if reason := _check_template(staged / FOLDER):
        yield f"the chat template refuses a conversation of one message, and such requests will get 400: {reason}"
    if draft.text is not None and draft.text.defaults:
        values = ", ".join(f"`{name}` {value:g}" for name, value in draft.text.defaults.items())
        yield f"requests that say nothing else have the values of `{_GENERATION}`: {values}"
    if draft.text is None or draft.text.engine == "fake":
        return
    ends, end = draft.text.ends, tokens.end
    if not ends:
        yield f"no `eos_token_id` in `{CONFIG}` or `{_GENERATION}`: every answer will have its maximum length"
    elif end is not None and end not in ends:
        yield (
            f"`eos_token_id` is {listed(ends)}, but the `eos_token` of the tokenizer is `{end}`: answers may go on "
            "after it"
        )


@dataclass
class _GeneratedText:
    """What the engine wrote: all tokens, how many of them are the prompt, and the engine's report on each other one."""

    tokens: list[int]
    prompt: int
    reports: list[Token]


def why_not_runnable(draft: Draft) -> str | None:
    """Why a model that vLLM serves cannot run on this machine; None if it can, or if vLLM is not used."""
    vllm = draft.text.vllm if draft.text else None
    if vllm is None:
        return None
    if not Path(vllm.python).is_file():
        return f"no vLLM on this machine, no `{vllm.python}`"
    if vllm.weights is not None and not Path(vllm.weights).is_dir():
        return f"no weights at `{vllm.weights}` on this machine"
    if draft.device == "cuda" and not list(Path("/dev").glob("nvidia[0-9]*")):
        return "no GPU on this machine"
    return None


def calibration_texts(spec: Spec) -> list[str]:
    """The spec's calibration texts, one per line of its `.txt` files; empty if it has none."""
    if spec.model.calibration is None:
        return []
    folder, texts = spec.path(spec.model.calibration), []
    where = f"{spec.file}: `model.calibration`"
    try:
        for file in sorted(folder.glob("*.txt")):
            texts += [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as err:
        raise SourceError(f"{where}: `{file}`: cannot be read: {err}") from err
    if not texts:
        raise SourceError(f"{where}: nothing to read in `{folder}`, allowed: `.txt` files with one text per line")
    return texts


def compare_text(draft: Draft, staged: Path, original: Path, known: Sequence[str] = ()) -> Agreement:
    """Compares the engine's likeliest next tokens with those of the `original` folder's model in fp32, on texts that
    the engine writes with its slots full, and measures the perplexity of the `known` texts.

    Raises AgreementError if a compiled engine writes something else alone than in a batch, or if scores are not finite.
    A model that cannot run here is not judged, and the record says so."""
    record = parse_record(draft.to_data())
    text = record.text
    if text is None or text.engine == "fake":
        # The fake engine repeats the prompt, so there is nothing to compare.
        return _agreement([], [], [])
    folder = staged / text.folder
    weights = Path(text.vllm.weights) if text.vllm and text.vllm.weights else original
    if text.vllm and (missing := why_not_runnable(draft) or _incomparable(weights)):
        return _agreement([], [], []).model_copy(update={"agreement": None, "not_judged": missing})
    # Without end tokens, so that every text has its full length.
    engine = make_engine(replace(text, ends=()), folder, record.precision)
    written = _generate(engine, text, folder, range(_TEXTS))
    if text.engine == "aot":
        [alone] = _generate(engine, text, folder, range(1))
        if alone.reports != written[0].reports:
            raise AgreementError(_DIFFERS_ALONE)
    engine.close()
    texts = _encode(ModelTokenizer(folder), known or (_PLAIN_ENGLISH,), min(text.context, _MOST_TOKENS))
    longest = max(map(len, (*texts, *(answer.tokens for answer in written))))
    reference = Llama(weights, precision="fp32", slots=1, context=longest)
    same: list[bool] = []
    engine_logprobs: list[float] = []
    reference_logprobs: list[float] = []
    for answer in written:
        logprobs = torch.log_softmax(reference.read_whole(torch.tensor(answer.tokens)), -1)
        for row, token in zip(logprobs[answer.prompt - 1 :], answer.reports, strict=False):
            same.append(int(row.argmax()) == token.likeliest[0][0])
            engine_logprobs.append(token.logprob)
            reference_logprobs.append(float(row[token.token]))
    if not all(map(math.isfinite, (*engine_logprobs, *reference_logprobs))):
        raise AgreementError(_NOT_FINITE)
    knowledge = {"perplexity": _perplexity(reference, texts), "guessing": reference.vocabulary}
    return _agreement(same, engine_logprobs, reference_logprobs).model_copy(update=knowledge)


def _encode(tokens: ModelTokenizer, texts: Iterable[str], context: int) -> list[list[int]]:
    """The beginnings of the texts as tokens, `_MOST_TOKENS` in all."""
    encoded: list[list[int]] = []
    left = _MOST_TOKENS
    for text in texts:
        encoded.append(tokens.encode(text)[: min(context, left)])
        left -= len(encoded[-1])
    return encoded


def _perplexity(model: Llama, texts: Sequence[Sequence[int]]) -> float | None:
    """The model's perplexity on the texts; None if they have no token to predict."""
    loss, count = 0.0, 0
    for tokens in texts:
        if max(tokens, default=0) >= model.vocabulary:
            known = f"but the model knows tokens from 0 to {model.vocabulary - 1}"
            raise AgreementError(f"a calibration text has the token {max(tokens)}, {known}; no MAR was written")
        for start in range(0, len(tokens) - 1, _TOKENS_AT_ONCE):
            targets = torch.tensor(tokens[start + 1 : start + 1 + _TOKENS_AT_ONCE])
            scores = model.read_whole(torch.tensor(tokens[start : start + len(targets)]), start)
            loss += float(cross_entropy(scores, targets, reduction="sum"))
            count += len(targets)
    # Limited to avoid an overflow; far above the size of the vocabulary, the exact value means nothing.
    return round(math.exp(min(loss / count, 100)), 4) if count else None


def _incomparable(folder: Path) -> str | None:
    """Why the model cannot be computed in fp32 for the comparison; None if it can. vLLM serves more kinds of models
    than we can compute, and larger ones."""
    try:
        check_weights(folder)
    except UnknownModel as err:
        return f"nothing to compare with: {err}"
    # Most weights have two bytes in the file, and four in fp32.
    needed = 2 * sum(file.stat().st_size for file in weight_files(folder))
    if needed > (free := free_memory()):
        return f"in fp32 it takes {needed / 1e9:.0f} GB, but only {free / 1e9:.0f} GB are free on this machine"
    return None


def _generate(engine: Engine, text: TextSpec, folder: Path, seeds: Iterable[int]) -> list[_GeneratedText]:
    """A text for each seed, as many at a time as there are slots; with seed 0 the engine takes the likeliest tokens."""
    # Some tokenizers make no tokens of English, such as one for DNA.
    prompt = ModelTokenizer(folder).encode(PROMPT)[: text.context // 2] or [0]
    length = min(_LENGTH, text.context - len(prompt))
    texts = {str(seed): _GeneratedText(list(prompt), len(prompt), []) for seed in seeds}
    waiting, running = list(texts), 0
    while waiting or running:
        while waiting and running < text.slots:
            temperature = 1.0 if int(waiting[0]) else 0.0
            engine.add(waiting[0], prompt, Sampling(temperature=temperature, seed=int(waiting[0]), logprobs=1))
            del waiting[0]
            running += 1
        for token in engine.step():
            if isinstance(token, NoToken):
                raise AgreementError("the engine fails on a token that it wrote itself; no MAR was written")
            if not math.isfinite(token.logprob):
                raise AgreementError(_NOT_FINITE)
            written = texts[token.sequence]
            if len(written.reports) == length:
                # Speculation may yield several tokens in a step, also beyond the last one that is wanted.
                continue
            written.tokens.append(token.token)
            written.reports.append(token)
            if len(written.reports) == length:
                engine.cancel(token.sequence)
                running -= 1
    return list(texts.values())


def _agreement(same: list[bool], engine_logprobs: list[float], reference_logprobs: list[float]) -> Agreement:
    count = len(same)
    differences = [abs(left - right) for left, right in zip(engine_logprobs, reference_logprobs, strict=True)]
    log_ratio = (sum(reference_logprobs) - sum(engine_logprobs)) / count if count else 0.0
    return Agreement(
        inputs="generated",
        count=count,
        measure="top-1",
        agreement=sum(same) / count if count else 1.0,
        max_abs_difference=round(max(differences, default=0.0), 6),
        cosine=1.0,
        perplexity_ratio=round(math.exp(log_ratio), 6),
    )
