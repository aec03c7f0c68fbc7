"""A language model into a package: its folder's files as they are, and a proof that the engine in the package writes
what the model, computed whole and in fp32, would write."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from archiver.native import compile_decoder
from archiver.stage import PROMPT, start_draft
from config.errors import AgreementError, SourceError
from config.hf_folder import Folder, FolderRefused, read_folder
from config.record import Agreement, Artifact, Draft, Writing
from config.spec import Spec
from handlers.generation import (
    LIBRARY,
    Engine,
    Llama,
    NoToken,
    Sampling,
    TemplateRefused,
    Token,
    Tokens,
    UnknownModel,
    check_weights,
    describe,
    make_engine,
    read_shape,
)
from handlers.record import TextSpec, parse_record

FOLDER = "model"
# What the model writes for the comparison: so many texts of so many tokens, each with a seed of its own.
_TEXTS, _LENGTH = 8, 96


def stage_text(spec: Spec, staged: Path) -> Draft:
    """The record of a language model as far as it is known before the comparison; stages the files it names."""
    folder = _stage_folder(spec, staged / FOLDER)
    settings = spec.writing.model_dump(exclude={"route", "sessions"}) | {"waiting": spec.waiting}
    if spec.vllm is not None:
        settings["vllm"]["files"] = describe(folder.files) if spec.vllm.weights is not None else {}
    writing = Writing(folder=FOLDER, ends=_ends(folder, staged / FOLDER), **settings)
    artifacts = []
    if writing.engine == "aot":
        compile_decoder(spec.model.cpu_target, staged / FOLDER / LIBRARY)
        artifacts.append(Artifact(file=f"{FOLDER}/{LIBRARY}", batch=writing.slots))
    return start_draft(spec, None, staged).model_copy(update={"text": writing, "artifacts": tuple(artifacts)})


def _stage_folder(spec: Spec, into: Path) -> Folder:
    where, computed = f"{spec.file}: `model.source`", spec.writing.engine != "fake"
    packs_weights = computed and (spec.vllm is None or spec.vllm.weights is None)
    try:
        folder = read_folder(spec.path(spec.model.folder or ""), weights=computed)
        into.mkdir()
        for file in folder.files:
            if packs_weights or file.suffix != ".safetensors":
                shutil.copy(file, into / file.name)
        Tokens(into)
        if computed and spec.vllm is None:
            check_weights(into)
    except FolderRefused as err:
        raise SourceError(f"{where}: {err}", hint=err.hint) from err
    except (UnknownModel, TemplateRefused, ValueError) as err:
        raise SourceError(f"{where}: `{spec.model.folder}`: {err}") from err
    return folder


def _ends(folder: Folder, staged: Path) -> tuple[int, ...]:
    """Tokens after which the model has nothing more to say, from `generation_config.json` too, where chats have more of
    them."""
    ends = folder.config.get("eos_token_id")
    if (folder.path / "generation_config.json").is_file():
        ends = json.loads((staged / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id", ends)
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


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


def compare_text(draft: Draft, staged: Path) -> Agreement:
    """The engine's likeliest next tokens against those of the model in fp32, on texts that the engine has written with
    its slots full; AgreementError where a compiled one writes otherwise alone. What cannot be run here is not judged,
    and the record says so."""
    record = parse_record(draft.to_data())
    text = record.text
    if text is None or text.engine == "fake":
        # What says the prompt again has nothing to agree with.
        return _agreed([], [], [])
    folder = staged / text.folder
    weights = Path(text.vllm.weights) if text.vllm and text.vllm.weights else folder
    if text.vllm and (missing := missing_vllm(draft) or _incomparable(weights)):
        return _agreed([], [], []).model_copy(update={"agreement": None, "not_judged": missing})
    # It says more than an answer would, beyond its own ends too.
    engine = make_engine(replace(text, ends=()), folder, record.precision)
    written = _written(engine, text, folder, range(_TEXTS))
    if text.engine == "aot":
        [alone] = _written(engine, text, folder, range(1))
        if alone.reports != written[0].reports:
            text = "the compiled decoder writes another text alone than beside others; no MAR was written"
            raise AgreementError(text)
    engine.close()
    whole = Llama(weights, precision="fp32", slots=1, context=max(len(answer.tokens) for answer in written))
    same: list[bool] = []
    engines: list[float] = []
    wholes: list[float] = []
    for answer in written:
        logprobs = torch.log_softmax(whole.read_whole(torch.tensor(answer.tokens)), -1)
        for row, token in zip(logprobs[answer.prompt - 1 :], answer.reports, strict=False):
            same.append(int(row.argmax()) == token.likeliest[0][0])
            engines.append(token.logprob)
            wholes.append(float(row[token.token]))
    return _agreed(same, engines, wholes)


def _incomparable(folder: Path) -> str | None:
    """Why the model's fp32 cannot be had to compare with: vLLM knows more models, and larger ones."""
    try:
        read_shape(folder)
    except UnknownModel as err:
        return f"nothing to compare with, {err}"
    # Most weights have two bytes, and four where they are compared with.
    needed = 2 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if needed > (free := psutil.virtual_memory().available):
        return f"in fp32 it takes {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free on this machine"
    return None


def _written(engine: Engine, text: TextSpec, folder: Path, seeds: Iterable[int]) -> list[_Text]:
    """A text for each seed, all at the same time; the first takes the likeliest tokens."""
    prompt = Tokens(folder).encode(PROMPT)[: text.context // 2]
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
