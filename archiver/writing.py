"""A language model into a package: its folder's files as they are, and a proof that the engine in the package writes
what the model, computed whole and in fp32, would write."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
    settings = spec.writing.model_dump() | {"waiting": spec.waiting}
    writing = Writing(folder=FOLDER, ends=_ends(folder, staged / FOLDER), **settings)
    artifacts = []
    if writing.engine == "aot":
        compile_decoder(spec.model.cpu_target, staged / FOLDER / LIBRARY)
        artifacts.append(Artifact(file=f"{FOLDER}/{LIBRARY}", batch=writing.slots))
    return start_draft(spec, None, staged).model_copy(update={"text": writing, "artifacts": tuple(artifacts)})


def _stage_folder(spec: Spec, into: Path) -> Folder:
    where, computed = f"{spec.file}: `model.source`", spec.writing.engine != "fake"
    try:
        folder = read_folder(spec.path(spec.model.folder or ""), weights=computed)
        into.mkdir()
        for file in folder.files:
            if computed or file.suffix != ".safetensors":
                shutil.copy(file, into / file.name)
        Tokens(into)
        if computed:
            read_shape(into)
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


def compare_text(draft: Draft, staged: Path) -> Agreement:
    """The engine's likeliest next tokens against those of the model in fp32, on texts that the engine has written with
    its slots full; AgreementError where a compiled one writes otherwise alone."""
    record = parse_record(draft.json_data())
    text = record.text
    if text is None or text.engine == "fake":
        # What says the prompt again has nothing to agree with.
        return _agreed([], [], [])
    folder = staged / text.folder
    engine = make_engine(text, folder, record.precision)
    written = _written(engine, text, folder, range(_TEXTS))
    if text.engine == "aot":
        [alone] = _written(engine, text, folder, range(1))
        if alone.reports != written[0].reports:
            raise AgreementError("the compiled decoder writes otherwise alone than beside others; no MAR was written")
    engine.close()
    whole = Llama(folder, precision="fp32", slots=1, context=max(len(each.tokens) for each in written))
    same: list[bool] = []
    engines: list[float] = []
    wholes: list[float] = []
    for each in written:
        logprobs = torch.log_softmax(whole.read_whole(torch.tensor(each.tokens)), -1)
        for row, token in zip(logprobs[each.prompt - 1 :], each.reports, strict=False):
            same.append(int(row.argmax()) == token.likeliest[0][0])
            engines.append(token.logprob)
            wholes.append(float(row[token.token]))
    return _agreed(same, engines, wholes)


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
