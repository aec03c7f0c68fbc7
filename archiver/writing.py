"""A language model into a package: its folder's files as they are, and a proof that the engine in the package writes
what the model, computed whole and in fp32, would write."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from archiver.native import compile_decoder
from archiver.stage import PROMPT, start_draft
from config.errors import AgreementError, SourceError, listed
from config.hf_folder import CONFIG, TOKENIZER, FolderRefused, ModelFolder, read_model_folder
from config.machine import free_memory
from config.record import Agreement, Artifact, Draft, Writing
from config.spec import Spec
from handlers.generation import (
    LIBRARY,
    Engine,
    Llama,
    ModelTokenizer,
    NoToken,
    Sampling,
    TemplateRefused,
    Token,
    UnknownModel,
    check_weights,
    fingerprint_files,
    make_engine,
    weight_files,
)
from handlers.record import TextSpec, parse_record

FOLDER, _GENERATION = "model", "generation_config.json"
# What the model writes for the comparison: so many texts of so many tokens, each with a seed of its own.
_TEXTS, _LENGTH = 8, 96
# What it reads, where nobody says what it should know: a model of these families has read of such things.
_PLAIN = (
    f"{PROMPT} there was a fisher who lived by the harbour. One morning she found a silver key in the sand, and nobody "
    "knew whose it was."
)
_NO_NUMBERS = "the model's scores are not numbers: its weights are broken; no MAR was written"
_ANOTHER_ALONE = "the compiled decoder writes another text alone than beside others; no MAR was written"
# More tokens would change the figure little, and packaging would take minutes; so many at once, for each of them gives
# every token that the model knows a score.
_MOST_KNOWN, _AT_ONCE = 4096, 256


def stage_text(spec: Spec, staged: Path) -> Draft:
    """The record of a language model as far as it is known before the comparison; stages the files it names."""
    folder, ends = _stage_folder(spec, staged / FOLDER)
    settings = spec.writing.model_dump(exclude={"max_perplexity", "route", "sessions"}) | {"waiting": spec.waiting}
    if spec.vllm is not None:
        settings["vllm"]["files"] = fingerprint_files(folder.files) if spec.vllm.weights is not None else {}
    writing = Writing(folder=FOLDER, ends=ends, **settings)
    artifacts = []
    if writing.engine == "aot":
        compile_decoder(spec.model.cpu_target, staged / FOLDER / LIBRARY)
        artifacts.append(Artifact(file=f"{FOLDER}/{LIBRARY}", batch=writing.slots))
    return start_draft(spec, None, staged).model_copy(update={"text": writing, "artifacts": tuple(artifacts)})


def _stage_folder(spec: Spec, into: Path) -> tuple[ModelFolder, tuple[int, ...]]:
    where, computed = f"{spec.file}: `model.source`", spec.writing.engine != "fake"
    packs_weights = computed and (spec.vllm is None or spec.vllm.weights is None)
    try:
        folder = read_model_folder(spec.path(spec.model.folder or ""), weights=computed)
        into.mkdir()
        weights = weight_files(folder.path) if packs_weights else []
        for file in (*(file for file in folder.files if file.suffix != ".safetensors"), *weights):
            if file.is_file():
                shutil.copy(file, into / file.name)
        ends = _ends(folder, into, ModelTokenizer(into))
        if computed and spec.vllm is None:
            check_weights(into)
    except FolderRefused as err:
        raise SourceError(f"{where}: {err}", hint=err.hint) from err
    except (UnknownModel, TemplateRefused, ValueError, RecursionError) as err:
        raise SourceError(f"{where}: `{spec.model.folder}`: {err}") from err
    return folder, ends


def _ends(folder: ModelFolder, staged: Path, tokens: ModelTokenizer) -> tuple[int, ...]:
    """Tokens after which the model has nothing more to say, from `generation_config.json` too, where chats have more of
    them."""
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


def doubts(draft: Draft, staged: Path) -> Iterator[str]:
    """What of a language model's folder may be wrong, and is said because it may not be."""
    if draft.text is None or draft.text.engine == "fake":
        return
    ends, end = draft.text.ends, ModelTokenizer(staged / FOLDER).end
    if not ends:
        yield f"no `eos_token_id` in `{CONFIG}` or `{_GENERATION}`: every answer is as long as it may be"
    elif end is not None and end not in ends:
        yield (
            f"`eos_token_id` is {listed(ends)}, and the `eos_token` of the tokenizer is `{end}`: answers may go on "
            "after it"
        )


@dataclass
class _Text:
    """What the engine wrote: all tokens, how many of them were the prompt, and of each other one what it said of it."""

    tokens: list[int]
    prompt: int
    reports: list[Token]


def missing_vllm(draft: Draft) -> str | None:
    """Why the model cannot be run on this machine, where vLLM is what runs it."""
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


def known_texts(spec: Spec) -> list[str]:
    """The texts of the calibration, a line each; none without one."""
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
        raise SourceError(f"{where}: nothing to read in `{folder}`, allowed: `.txt` files with a text a line")
    return texts


def compare_text(draft: Draft, staged: Path, original: Path, known: Sequence[str] = ()) -> Agreement:
    """The engine's likeliest next tokens against those of the `original` folder's model in fp32, on texts that the
    engine has written with its slots full, and the perplexity of those that it should know; AgreementError where a
    compiled engine writes otherwise alone, or the scores are not numbers. What cannot be run here is not judged,
    and the record says so."""
    record = parse_record(draft.to_data())
    text = record.text
    if text is None or text.engine == "fake":
        # What says the prompt again has nothing to agree with.
        return _agreed([], [], [])
    folder = staged / text.folder
    weights = Path(text.vllm.weights) if text.vllm and text.vllm.weights else original
    if text.vllm and (missing := missing_vllm(draft) or _incomparable(weights)):
        return _agreed([], [], []).model_copy(update={"agreement": None, "not_judged": missing})
    # It says more than an answer would, beyond its own ends too.
    engine = make_engine(replace(text, ends=()), folder, record.precision)
    written = _written(engine, text, folder, range(_TEXTS))
    if text.engine == "aot":
        [alone] = _written(engine, text, folder, range(1))
        if alone.reports != written[0].reports:
            raise AgreementError(_ANOTHER_ALONE)
    engine.close()
    texts = _read(ModelTokenizer(folder), known or (_PLAIN,), min(text.context, _MOST_KNOWN))
    longest = max(map(len, (*texts, *(answer.tokens for answer in written))))
    whole = Llama(weights, precision="fp32", slots=1, context=longest)
    same: list[bool] = []
    engines: list[float] = []
    wholes: list[float] = []
    for answer in written:
        logprobs = torch.log_softmax(whole.read_whole(torch.tensor(answer.tokens)), -1)
        for row, token in zip(logprobs[answer.prompt - 1 :], answer.reports, strict=False):
            same.append(int(row.argmax()) == token.likeliest[0][0])
            engines.append(token.logprob)
            wholes.append(float(row[token.token]))
    if not all(map(math.isfinite, (*engines, *wholes))):
        raise AgreementError(_NO_NUMBERS)
    known_by = {"perplexity": _perplexity(whole, texts), "guessing": whole.vocabulary}
    return _agreed(same, engines, wholes).model_copy(update=known_by)


def _read(tokens: ModelTokenizer, texts: Iterable[str], context: int) -> list[list[int]]:
    """The beginnings of texts in tokens, as many as are needed."""
    read: list[list[int]] = []
    left = _MOST_KNOWN
    for text in texts:
        read.append(tokens.encode(text)[: min(context, left)])
        left -= len(read[-1])
    return read


def _perplexity(whole: Llama, texts: Sequence[Sequence[int]]) -> float | None:
    """How many tokens the model wavers between, on average, where it reads on; None where there is nothing to read."""
    lost, count = 0.0, 0
    for tokens in texts:
        if max(tokens, default=0) >= whole.vocabulary:
            known = f"the model knows those from 0 to {whole.vocabulary - 1}"
            raise AgreementError(f"a text of the calibration has the token {max(tokens)}, {known}; no MAR was written")
        for start in range(0, len(tokens) - 1, _AT_ONCE):
            next_ones = torch.tensor(tokens[start + 1 : start + 1 + _AT_ONCE])
            scores = whole.read_whole(torch.tensor(tokens[start : start + len(next_ones)]), start)
            lost += float(cross_entropy(scores, next_ones, reduction="sum"))
            count += len(next_ones)
    # Far above the number of tokens it says no more than that.
    return round(math.exp(min(lost / count, 100)), 4) if count else None


def _incomparable(folder: Path) -> str | None:
    """Why the model's fp32 cannot be had to compare with: vLLM knows more models, and larger ones."""
    try:
        check_weights(folder)
    except UnknownModel as err:
        return f"nothing to compare with, {err}"
    # Most weights have two bytes, and four where they are compared with.
    needed = 2 * sum(file.stat().st_size for file in weight_files(folder))
    if needed > (free := free_memory()):
        return f"in fp32 it takes {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free on this machine"
    return None


def _written(engine: Engine, text: TextSpec, folder: Path, seeds: Iterable[int]) -> list[_Text]:
    """A text for each seed, all at the same time; the first takes the likeliest tokens."""
    prompt = ModelTokenizer(folder).encode(PROMPT)[: text.context // 2]
    length = min(_LENGTH, text.context - len(prompt))
    texts = {str(seed): _Text(list(prompt), len(prompt), []) for seed in seeds}
    waiting, running = list(texts), 0
    while waiting or running:
        while waiting and running < text.slots:
            temperature = 1.0 if int(waiting[0]) else 0.0
            engine.add(waiting[0], prompt, Sampling(temperature=temperature, seed=int(waiting[0]), logprobs=1))
            del waiting[0]
            running += 1
        for token in engine.step():
            if isinstance(token, NoToken):
                raise AgreementError("the engine fails at a token of its own; no MAR was written")
            if not math.isfinite(token.logprob):
                raise AgreementError(_NO_NUMBERS)
            written = texts[token.sequence]
            if len(written.reports) == length:
                # Of a guess that was right, after the last.
                continue
            written.tokens.append(token.token)
            written.reports.append(token)
            if len(written.reports) == length:
                engine.cancel(token.sequence)
                running -= 1
    return list(texts.values())


def _agreed(same: list[bool], engines: list[float], wholes: list[float]) -> Agreement:
    count = len(same)
    differences = [abs(left - right) for left, right in zip(engines, wholes, strict=True)]
    return Agreement(
        inputs="generated",
        count=count,
        measure="top-1",
        agreement=sum(same) / count if count else 1.0,
        max_abs_difference=round(max(differences, default=0.0), 6),
        cosine=1.0,
        perplexity_ratio=round(math.exp((sum(wholes) - sum(engines)) / count), 6) if count else 1.0,
    )
