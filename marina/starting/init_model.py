"""Finds out what a model takes and returns by loading and running it, and chooses how to serve it."""

import argparse
import inspect
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, SourceError
from marina.config.progress import Progress
from marina.config.remote import meant_hub_id, parse_remote
from marina.config.sections import SAVED
from marina.config.spec import Fetched
from marina.starting.init_scaling import picture_options, refuse_picture_options
from marina.starting.init_source import resolve_source
from marina.starting.init_spec import ModelFacts, spec_text

_X = {"x": {"shape": [4], "dtype": "float32"}}
# The models that are written if `--source` is not given.
_EXAMPLE_MODELS = {
    "image": ModelFacts("./model.py:build", "image", picture=(3, 32, 32)),
    "tensor": ModelFacts("./model.py:build", "tensor", inputs=_X),
    "detect": ModelFacts(
        "./model.py:build",
        "image",
        picture=(3, 64, 64),
        task="detect",
        outputs=("boxes", "scores"),
        image={"fit": "squash"},
        detection={"boxes": "xyxy"},
    ),
    "segment": ModelFacts("./model.py:build", "image", picture=(3, 64, 64), task="segment", image={"fit": "squash"}),
    "text": ModelFacts(
        "./model.py:build",
        "own",
        template="text",
        files=("./words.txt",),
        shapes=((2,),),
        inputs={"ids": {"shape": [{"max": 64}], "dtype": "int64", "min": 0, "max": 999}, "mask": {"mask_of": "ids"}},
    ),
}


def fetch_named(options: argparse.Namespace, progress: Progress) -> dict[str, Fetched]:
    """Fetches what the options name and lies elsewhere."""
    remotes = [remote for remote in map(parse_remote, (options.source, options.weights)) if remote]
    if not remotes:
        return {}
    from marina.archiver.fetching import fetch_remote

    return {remote.text: fetch_remote(remote, progress) for remote in remotes}


# What heads of `transformers` do that no task does.
_UNSERVED = {
    "MultipleChoice": "chooses one of several texts",
    "NextSentencePrediction": "says whether one text follows another",
    "PreTraining": "is as its training left it, without a task",
}


def find_model_facts(name: str, options: argparse.Namespace, fetched: Mapping[str, Fetched]) -> ModelFacts:
    """The facts for the spec: of the model in `--source`, or of an example model that the user will replace."""
    return replace(_find_facts(name, options, fetched), fetched=fetched)


def _find_facts(name: str, options: argparse.Namespace, fetched: Mapping[str, Fetched]) -> ModelFacts:
    if options.template and options.handler not in (None, "own"):
        text = f"`--handler`: got `{options.handler}`, but `--template` writes a handler of your own"
        raise InputError(text, hint="leave out one of the two")
    if options.source is None:
        handler = options.handler
        kind = options.template or ("tensor" if handler in ("tensor", "own") else "image")
        if options.task in _EXAMPLE_MODELS and kind == "image":
            kind = options.task
        others = {f"--{name}": getattr(options, name) for name in ("fit", "input", "normalize", "set", "weights")}
        if any(others.values()) or options.task not in (None, "classify", kind):
            option = next((name for name, value in others.items() if value), "--task")
            text = f"`{option}`: only together with `--source`"
            raise InputError(text, hint="--source ./model.py:Net")
        example = _EXAMPLE_MODELS[kind]
        return replace(example, handler="own" if options.template else handler or example.handler)
    source, here = paths_of(name, resolve_source(options.source), fetched)
    if here.startswith("hf:"):
        return _of_folder(source, here.removeprefix("hf:"), options)
    _refuse_text_options(options)
    if source.startswith("torchvision:"):
        return _of_torchvision(source, options, name, fetched)
    if options.trust_pickle and source.lower().endswith(SAVED):
        from marina.archiver.isolation import leave_network

        # Before torch has threads, which would keep it: what the file's code computes needs none.
        if reason := leave_network():
            print(f"kept from the network in Python only, and only while `{source}` is read: {reason}", file=sys.stderr)
    from marina.archiver.inferring import find_inputs, find_program_inputs, parse_input_option
    from marina.archiver.preprocessing import input_size
    from marina.starting.init_pictures import choose_handler, takes_pictures

    given = [parse_input_option(text) for text in options.input or ()]
    weights, weights_here = paths_of(name, options.weights, fetched) if options.weights else (None, None)
    # A name that no argument has, because a spec may not give one to another argument.
    trust = options.trust_pickle
    probe = ModelFacts(here, "tensor", weights=weights_here, inputs={"unknown": _X["x"]}, trust_pickle=trust)
    loaded = _loaded(probe)
    if not given and (size := input_size(loaded.network)) and takes_pictures(loaded.network):
        # The size that it was made for; else the search would find another that it takes, too.
        name_of_input = next(iter(inspect.signature(loaded.network.forward).parameters), "x")
        given = [parse_input_option(f"{name_of_input}:float32:{','.join(map(str, size))}")]
    if source.endswith(".pt2"):
        from marina.archiver.exported_source import read_program

        program = read_program("`--source`", Path(here))
        signature = find_program_inputs(program, loaded.network, given, loaded.only_batch)
    else:
        signature = find_inputs(loaded.network, given)
        if loaded.only_batch:
            signature = replace(signature, only_batch=loaded.only_batch)
    fields = {key: tensor.field() for key, tensor in signature.inputs.items()}
    facts = ModelFacts(
        source,
        "tensor",
        weights=weights,
        trust_pickle=trust,
        inputs=fields,
        outputs=signature.names,
        shapes=signature.outputs,
        only_batch=signature.only_batch,
        free_input=next(iter(signature.free), None),
        notes=[*loaded.notes, *signature.notes],
    )
    return choose_handler(facts, options, loaded.network)


def _refuse_text_options(options: argparse.Namespace) -> None:
    """Raises InputError for options that only a folder of `transformers` has."""
    given = {"handler": "text", "pooling": options.pooling}
    wrong = [name for name, value in given.items() if value and getattr(options, name) == value]
    if options.task in ("answer", "fill", "rerank", "tokens"):
        wrong.append("task")
    if wrong:
        text = f"`--{wrong[0]}`: got `{getattr(options, wrong[0])}`, allowed only with `--source hf:./folder`"
        raise InputError(text, hint=f"without `--{wrong[0]}`")


def paths_of(name: str, source: str, fetched: Mapping[str, Fetched]) -> tuple[str, str]:
    """A source as paths from the new folder, for its spec, and as paths from the current folder. One that lies
    elsewhere is written as it is, and read from where it was fetched to."""
    if got := fetched.get(source):
        return source, f"hf:{got.path}" if got.path.is_dir() else str(got.path)
    if source.startswith("torchvision:"):
        return source, source
    scheme = "hf:" if source.startswith("hf:") else ""
    path, colon, factory = source.removeprefix(scheme).partition(":")

    def relative_to(folder: str) -> str:
        file = Path(os.path.relpath(path, folder)).as_posix()
        return f"{scheme}{file if file.startswith('.') else f'./{file}'}{colon}{factory}"

    return relative_to(name), relative_to(".")


def choose_compile_mode(spec: Path, name: str, facts: ModelFacts, sample: str) -> ModelFacts:
    """The facts with a `compile` and batch sizes that the model can be packaged with: compiled if it can be exported,
    eager if not; with batches if its rows do not influence each other."""
    from marina.archiver import compiling
    from marina.archiver.graph import build_graph, examples, output_ports
    from marina.archiver.rows import TRIED_ROWS
    from marina.archiver.sources import load_source
    from marina.config.load import load_spec, parse_spec

    read = load_spec(spec).with_fetched(facts.fetched)
    if facts.writes or facts.handler == "audio":
        return facts
    loaded = load_source(read)
    rows = examples(read, loaded, loaded.only_batch or max(read.model.batch_sizes))
    graph = build_graph(read, loaded, "fp32")
    alone = tuple(value[: loaded.only_batch or 1] for value in rows)
    output_ports(read, graph, alone)
    try:
        output_ports(read, graph, rows)
    except SourceError as err:
        if not facts.source.endswith(".pt2"):
            raise
        facts = replace(facts, only_batch=1, notes=[*facts.notes, f"`batch_sizes` is [1]: {_reason(err, spec)}"])
    facts = replace(facts, row_ms=_row_ms(graph, alone))
    ways = ("aot", "eager") if read.model.source.partition(":")[0].endswith(".py") else ("aot",)
    if ways == ("aot",) and not read.model.saved_whole:
        return facts
    # By batch size: whether rows influence each other does not depend on how they are computed.
    mixing: dict[int | None, SourceError | None] = {}
    unexported: SourceError | None = None
    for mode, batch in product(ways, (facts.only_batch, 1)):
        tried = replace(facts, compile=mode, only_batch=batch)
        read = parse_spec(spec_text(name, tried, sample), spec).with_fetched(facts.fetched)
        batched = tuple(value[: max(read.model.batch_sizes)] for value in rows)
        if batch not in mixing:
            mixing[batch] = _mixing_error(read, graph, examples(read, loaded, TRIED_ROWS))
        if mixing[batch]:
            continue
        try:
            if mode == "aot":
                compiling.export_graph(read, graph, batched, loaded)
        except SourceError as err:
            unexported = unexported or err
            continue
        reasons = [_reason(err, spec) for err in (*mixing.values(), unexported) if err]
        if batch != facts.only_batch:
            tried.notes.append(f"`batch_sizes` is [1]: {reasons[0]}")
        if mode == "eager":
            text = f"`compile: eager` runs its file in the worker, because it cannot be compiled: {reasons[-1]}"
            tried.notes.append(text)
        return tried
    raise next(filter(None, (*mixing.values(), unexported)), AssertionError)


def _reason(err: SourceError, spec: Path) -> str:
    return err.message.removeprefix(f"{spec}: ")


def _mixing_error(spec: Any, graph: Any, rows: Any) -> SourceError | None:
    """The error that explains how rows of a batch influence each other; None if they do not."""
    from marina.archiver.package import check_row_answers
    from marina.archiver.rows import RowsMixed

    try:
        check_row_answers(spec, graph, rows)
    except RowsMixed as err:
        return err
    return None


def _row_ms(graph: Any, rows: Any) -> float:
    """The processor time that the rows take on one thread, ms, the shortest of three: on a busy machine, the time that
    passes is also that of other programs."""
    import torch

    from marina.archiver import compiling

    times = []
    with torch.no_grad(), compiling.torch_threads(1):
        for _ in range(3):
            began = time.process_time()
            graph(*rows)
            times.append(1000 * (time.process_time() - began))
    return min(times)


def _of_torchvision(source: str, options: argparse.Namespace, name: str, fetched: Mapping[str, Fetched]) -> ModelFacts:
    from marina.starting.init_pictures import other_task

    weights = options.weights or "random"
    in_spec, here = paths_of(name, weights, fetched) if "." in weights else (weights, weights)
    facts = ModelFacts(source, "image", weights=here, picture=(3, 224, 224))
    if refused := other_task(source.removeprefix("torchvision:")):
        raise InputError(f"`--source`: `{source}` {refused[0]}", hint=refused[1])
    loaded = _loaded(facts)
    facts = replace(facts, weights=in_spec, notes=[*loaded.notes])
    if loaded.image is None:
        raise InputError(f"`--source`: `{source}` does not classify pictures", hint="--source ./file.py:build")
    if options.template or options.input:
        option = "--template" if options.template else "--input"
        raise InputError(f"`{option}`: not for `{source}`, which classifies pictures")
    handler, picture = options.handler or "image", (3, loaded.image.height, loaded.image.width)
    if handler != "tensor":
        if own := picture_options(options, 3):
            read = loaded.image.model_dump(include={"fit", "interpolation", "mean", "resize", "std"}, exclude_none=True)
            if "fit" in own:
                read.pop("resize", None)
            facts = replace(facts, image=read | own, image_said="as torchvision's weights need, and the options say")
        return replace(facts, handler=handler, picture=picture)
    refuse_picture_options(options, "`handler` is `tensor`")
    return replace(facts, handler="tensor", picture=None, inputs={"x": {"shape": [*picture], "dtype": "float32"}})


def _of_folder(source: str, folder: str, options: argparse.Namespace) -> ModelFacts:
    from marina.config.hf_folder import FolderRefused
    from marina.config.picture_folder import is_picture_folder

    both = is_picture_folder(Path(folder)) and Path(folder, "tokenizer.json").is_file()
    handler = None if both and options.handler in ("image", "text") else options.handler
    if handler or options.template or options.input or options.weights:
        text = f"`--source`: `{source}` says everything itself, the only other option allowed: `--task`"
        raise InputError(text, hint="--task embed")
    if not Path(folder).is_dir():
        on_hub = meant_hub_id(f"OWNER/{Path(folder).name}")
        hint = f"--source {on_hub}, if it is on Hugging Face's hub" if on_hub else None
        raise InputError(f"`--source`: no such folder: `{folder}`", hint=hint)
    if (is_picture_folder(Path(folder)) and options.handler != "text") or options.task in ("detect", "segment"):
        from marina.starting.init_pictures import facts_of_picture_folder

        return facts_of_picture_folder(source, folder, options)
    refuse_picture_options(options, f"`{source}` takes none")
    try:
        return _facts_of_folder(source, Path(folder), options)
    except FolderRefused as err:
        raise InputError(f"`--source`: {err}", hint=err.hint) from err


def _facts_of_folder(source: str, folder: Path, options: argparse.Namespace) -> ModelFacts:
    """The facts of an encoder or a language model, according to the architecture in its configuration."""
    from marina.config.hf_folder import read_model_folder

    if facts := _of_sound(source, folder, options):
        return facts
    read = read_model_folder(folder, pickled=True)
    embedding = read.read_embedding()
    longest = min(read.longest or 128, read.cut or 128, 128)
    kind = read.architecture
    writes = embedding.pooling is None and kind.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    if options.task is None and writes:
        if read.config.get("is_encoder_decoder"):
            text = (
                f"`--source`: `{source}` is a `{kind}`, which writes one text for another, and Marina serves none such"
            )
            raise InputError(text, hint="--task embed, for the embeddings of its encoder")
        return _of_language_model(source, read_model_folder(folder))
    # Many embedders were made of a model that fills in masks, and are called so still.
    task = options.task or ("embed" if embedding.pooling and read.made_for == "fill" else read.made_for)
    if options.task is None and task == "classify" and len(read.config.get("id2label") or "ab") == 1:
        task = "rerank"
    is_said = options.task is not None or embedding.pooling is not None
    if not is_said and task == "embed" and kind and not kind.endswith("Model"):
        made_for = _UNSERVED.get(kind.rpartition("For")[2], "does what no task does")
        text = f"`--source`: `{source}` is a `{kind}`, which {made_for}, and Marina serves none such"
        raise InputError(text, hint="--task embed, for embeddings by its encoder; or --source ./model.py:build")
    pooling = embedding.pooling or options.pooling
    _check_pooling(options.pooling, task, read)
    fields = f", pooling: {pooling}" if pooling in ("cls", "last") else ""
    notes = [*read.left_out(task)]
    facts = ModelFacts(source, "text", task=task, longest=longest, embedding=fields, mask=read.mask, notes=notes)
    # SigLIP's part for texts was trained on texts that were padded to one length, and reads the padding.
    return replace(facts, buckets=f"[{longest}]") if read.config.get("model_type") == "siglip" else facts


def _check_pooling(asked: str | None, task: str, folder: Any) -> None:
    """Raises InputError if neither the folder nor the option says what an embedding is made of, or both do."""
    said = folder.read_embedding().pooling
    needs = task == "embed" and not folder.has_two_towers
    if asked and (not needs or said not in (None, asked)):
        why = f"the folder says `{said}`" if needs else "only an embedding by an encoder of texts is made of its tokens"
        raise InputError(f"`--pooling`: got `{asked}`, but {why}", hint="without `--pooling`")
    if needs and said is None and asked is None:
        text = "nothing says which of its tokens an embedding is made of: the mean of all, the first or the last one"
        raise InputError(f"`--source`: {text}", hint="--pooling mean, or cls or last, as it was trained")


def _of_sound(source: str, folder: Path, options: argparse.Namespace) -> ModelFacts | None:
    """The facts of a model that takes sound; None if the folder holds another."""
    from marina.config.hf_folder import hears_sound, read_sound_folder

    if not hears_sound(folder):
        return None
    hears = read_sound_folder(folder).hears
    task = "classify" if hears == "classes" else "transcribe"
    if options.task not in (None, task):
        raise InputError(f"`--task`: got `{options.task}`, but this model can only {task}", hint=f"--task {task}")
    notes = ["sounds may be 30 s long: `max_seconds` in `model` allows other lengths"] if hears != "whisper" else []
    return ModelFacts(
        source, "audio", task=task, compile="eager" if hears == "whisper" else "aot", only_batch=1, notes=notes
    )


def _of_language_model(source: str, folder: Any) -> ModelFacts:
    """The facts of a language model: served by Marina's own engine, or by vLLM if that does not compute it."""
    from marina.handlers.generation.engines.shape import OtherFamily, UnknownModel, read_shape

    weights = sum(file.stat().st_size for file in folder.files if file.suffix == ".safetensors")
    facts = ModelFacts(source, "text", longest=min(folder.longest or 512, 2048), weight_bytes=weights)
    try:
        read_shape(folder.path)
    except OtherFamily as err:
        note = f"`text.engine` is `vllm`, because Marina's own engines do not compute this model: {err}"
        return replace(facts, vllm=True, notes=[note])
    except UnknownModel as err:
        raise InputError(f"`--source`: `{folder.path}`: {err}") from err
    return replace(facts, longest=min(facts.longest or 512, folder.window or 2048))


def _spec_of(facts: ModelFacts) -> Any:
    from marina.config.load import parse_spec

    return parse_spec(spec_text("mine", facts, "sample.json"), Path("spec.yaml"), files=False)


def _loaded(facts: ModelFacts) -> Any:
    """The source as the packager loads it."""
    from marina.archiver.sources import load_source

    return load_source(_spec_of(facts))
