"""What a model takes, found by loading it and trying it, and how it is served best."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.errors import InputError, SourceError
from marina.starting.init_source import named_source
from marina.starting.init_spec import Start, spec_text

_X = {"x": {"shape": [4], "dtype": "float32"}}
# What is written where no model is named.
_WRITTEN = {
    "image": Start("./model.py:build", "image", picture=(3, 32, 32)),
    "tensor": Start("./model.py:build", "tensor", inputs=_X),
    "detection": Start("./model.py:build", "own", picture=(3, 64, 64), top_k=0, shapes=((16, 4), (16, 3)),
                       outputs=("boxes", "scores"), template="detection"),
    "mask": Start("./model.py:build", "own", picture=(3, 64, 64), top_k=0, shapes=((3, 64, 64),), template="mask"),
    "text": Start("./model.py:build", "own", template="text", files=("./words.txt",), shapes=((2,),), inputs={
        "ids": {"shape": [{"max": 64}], "dtype": "int64", "min": 0, "max": 999}, "mask": {"mask_of": "ids"}}),
}  # fmt: skip
# What a picture has to become.
_FOR = {
    "detection": "boxes [N, 4] and scores [N] or [N, classes] of a picture",
    "image": "a number for each class of a picture",
    "mask": "a number for each class and pixel of a picture",
}


def find_start(name: str, options: argparse.Namespace) -> Start:
    """What to write into the spec, for the source that was asked for or for a model to replace."""
    if options.source is None:
        handler = options.handler
        kind = options.template or ("tensor" if handler in ("tensor", "own") else "image")
        if options.input or options.weights or options.task:
            option = "--input" if options.input else "--weights" if options.weights else "--task"
            text = f"`{option}`: only with `--source`, which names its model"
            raise InputError(text, hint="--source ./model.py:Net")
        return replace(_WRITTEN[kind], handler="own" if options.template else handler or kind)
    source, here = seen_from(name, named_source(options.source))
    if source.startswith("hf:"):
        return _of_folder(source, here.removeprefix("hf:"), options)
    if options.task is not None:
        raise InputError(f"`--task`: got `{options.task}`, allowed: with `--source hf:FOLDER`")
    if source.startswith("torchvision:"):
        return _of_torchvision(source, options, name)
    from archiver.inferring import find_inputs, find_program_inputs, parse_input_option

    given = [parse_input_option(text) for text in options.input or ()]
    weights = seen_from(name, options.weights) if options.weights else (None, None)
    probe = Start(here, "tensor", weights=weights[1], inputs=_X)
    loaded = _loaded(probe)
    if source.endswith(".pt2"):
        from archiver.sources import read_program

        program = read_program(_spec_of(probe), Path(here))
        signature = find_program_inputs(program, given, loaded.only_batch)
    else:
        signature = find_inputs(loaded.network, given)
    fields = {key: tensor.field() for key, tensor in signature.inputs.items()}
    start = Start(
        source,
        "tensor",
        weights=weights[0],
        inputs=fields,
        outputs=signature.names,
        shapes=signature.outputs,
        only_batch=signature.only_batch,
        notes=[*loaded.notes, *signature.notes],
    )
    return _served(start, options)


def seen_from(name: str, source: str) -> tuple[str, str]:
    """A file as the spec in the new folder names it, and as it is named here."""
    if source.startswith("torchvision:"):
        return source, source
    scheme = "hf:" if source.startswith("hf:") else ""
    path, colon, factory = source.removeprefix(scheme).partition(":")
    inside = Path(os.path.relpath(path, name)).as_posix()
    here = Path(os.path.relpath(path)).as_posix()
    as_path = (file if file.startswith(".") else f"./{file}" for file in (inside, here))
    return tuple(f"{scheme}{file}{colon}{factory}" for file in as_path)  # type: ignore[return-value]


def settled(spec: Path, name: str, start: Start, sample: str) -> Start:
    """How the model in a spec can be packaged: compiled where it can be exported, as it is otherwise."""
    from archiver import compiling
    from archiver.graph import build_graph, examples, output_ports
    from archiver.sources import load_source
    from config.load import load_spec, parse_spec

    read = load_spec(spec)
    if start.writes:
        _check_writes(read)
        return start
    loaded = load_source(read)
    rows = examples(read, loaded, loaded.only_batch or max(read.model.batch_sizes))
    graph = build_graph(read, loaded, "fp32")
    output_ports(read, graph, rows)
    start = replace(start, row_ms=_row_ms(graph, [value[: loaded.only_batch or 1] for value in rows]))
    if not read.model.source.partition(":")[0].endswith(".py"):
        return start
    # By batch, for the rows of one are the same however they are computed.
    mixing: dict[int | None, SourceError | None] = {}
    unexported: SourceError | None = None
    for mode, batch in (("aot", start.only_batch), ("aot", 1), ("eager", start.only_batch), ("eager", 1)):
        tried = replace(start, compile=mode, only_batch=batch)
        read = parse_spec(spec_text(name, tried, sample), spec)
        batched = tuple(value[: max(read.model.batch_sizes)] for value in rows)
        if batch not in mixing:
            mixing[batch] = _mixing(read, graph, batched)
        if mixing[batch]:
            continue
        try:
            if mode == "aot":
                compiling.export_graph(read, graph, batched, loaded)
        except SourceError as err:
            unexported = unexported or err
            continue
        why = [err.message.removeprefix(f"{spec}: ") for err in (*mixing.values(), unexported) if err]
        if batch != start.only_batch:
            tried.notes.append(f"`batch_sizes` is [1]: {why[0]}")
        if mode == "eager":
            tried.notes.append(f"`compile: eager` runs its file in the worker, as it cannot be compiled: {why[-1]}")
        return tried
    raise next(filter(None, (*mixing.values(), unexported)), AssertionError)


def _mixing(spec: Any, graph: Any, rows: Any) -> SourceError | None:
    """What lets the rows of a batch into each other, if anything does."""
    from archiver.package import check_row_answers
    from archiver.rows import RowsMixed

    try:
        check_row_answers(spec, graph, rows)
    except RowsMixed as err:
        return err
    return None


def _row_ms(graph: Any, rows: Any) -> float:
    """What rows take with a worker's one thread, the least of three, for a neighbour may take from each."""
    import torch

    from archiver import compiling

    times = []
    with torch.no_grad(), compiling.torch_threads(1):
        for _ in range(3):
            began = time.perf_counter()
            graph(*rows)
            times.append(1000 * (time.perf_counter() - began))
    return min(times)


def _served(start: Start, options: argparse.Namespace) -> Start:
    """As pictures, texts or tensors, by what the model takes and gives, and by what was asked for."""
    picture, handler = _picture(start), options.handler
    wanted = options.template
    if handler == "image" and picture is None:
        shown = ", ".join(f"{key} {tensor.get('shape')}" for key, tensor in (start.inputs or {}).items())
        text = f"`--handler`: got `image`, but the model takes {shown}, allowed: 1 or 3 channels, rows, columns"
        raise InputError(text, hint=f"--handler tensor, or --input {next(iter(start.inputs or {}))}:float32:3,224,224")
    # What a program does to its numbers is not known, so it is given pictures only where they are asked for.
    pictured = not start.source.endswith(".pt2") or handler == "image" or wanted
    kind = _kind_of_answer(start, picture, wanted) if handler != "tensor" and pictured else None
    if kind is not None:
        own = kind != "image" or handler == "own"
        top_k = min(5, start.shapes[0][0]) if kind == "image" else 0
        template = None if kind == "image" else kind
        return replace(
            start, picture=picture, inputs=None, handler="own" if own else "image", top_k=top_k, template=template
        )
    if wanted == "text":
        _check_reads_words(start)
        return replace(start, handler="own", template="text", files=("./words.txt",))
    if wanted is not None or handler == "image":
        asked = f"`--template`: got `{wanted}`" if wanted else "`--handler`: got `image`"
        gives = ", ".join(map(str, map(list, start.shapes)))
        text = f"{asked}, for {_FOR[wanted or 'image']}, but this model gives {gives}"
        raise InputError(text, hint="--handler own")
    return replace(start, handler=handler or "tensor")


def _kind_of_answer(start: Start, picture: tuple[int, int, int] | None, wanted: str | None) -> str | None:
    """`image`, `mask` or `detection`, where the model takes a picture and gives that."""
    if picture is None:
        return None
    boxes = [shape for shape in start.shapes if len(shape) == 2 and shape[1] == 4]
    scores = [shape for shape in start.shapes if boxes and shape is not boxes[0] and shape[:1] == boxes[0][:1]]
    fits = {
        "image": len(start.shapes) == 1 and len(start.shapes[0]) == 1,
        "mask": len(start.shapes[0]) == 3 and start.shapes[0][1:] == picture[1:],
        "detection": bool(scores),
    }
    return next((kind for kind, fit in fits.items() if fit and wanted in (None, kind)), None)


def _picture(start: Start) -> tuple[int, int, int] | None:
    """The picture that is the model's only input."""
    inputs = list((start.inputs or {}).values())
    shape = inputs[0].get("shape", []) if len(inputs) == 1 and inputs[0].get("dtype") == "float32" else []
    fits = len(shape) == 3 and all(isinstance(side, int) for side in shape) and shape[0] in (1, 3)
    return (shape[0], shape[1], shape[2]) if fits else None


def _check_reads_words(start: Start) -> None:
    words = [tensor for tensor in (start.inputs or {}).values() if "mask_of" not in tensor]
    if len(words) != 1 or words[0]["dtype"] not in ("int32", "int64") or len(words[0]["shape"]) != 1:
        shown = ", ".join(f"`{name}` {tensor}" for name, tensor in (start.inputs or {}).items())
        text = f"`--template`: got `text`, which is for one input of token ids, but this model takes {shown}"
        raise InputError(text, hint="--handler own")


def _of_torchvision(source: str, options: argparse.Namespace, name: str) -> Start:
    weights = options.weights or "random"
    is_file = "." in weights
    start = Start(source, "image", weights=seen_from(name, weights)[1] if is_file else weights, picture=(3, 224, 224))
    loaded = _loaded(start)
    start = replace(start, weights=seen_from(name, weights)[0] if is_file else weights)
    if loaded.image is None:
        raise InputError(f"`--source`: `{source}` does not classify pictures", hint="--source ./file.py:build")
    if options.template or options.input:
        option = "--template" if options.template else "--input"
        raise InputError(f"`{option}`: not for `{source}`, which classifies pictures")
    handler, picture = options.handler or "image", (3, loaded.image.height, loaded.image.width)
    if handler != "tensor":
        return replace(start, handler=handler, picture=picture)
    return replace(start, handler="tensor", picture=None, inputs={"x": {"shape": [*picture], "dtype": "float32"}})


def _of_folder(source: str, folder: str, options: argparse.Namespace) -> Start:
    """An encoder or a language model, by what its configuration says it was trained for."""
    from config.hf_folder import FolderRefused, read_folder

    if options.handler or options.template or options.input or options.weights:
        text = f"`--source`: `{source}` needs no other options, allowed with it: `--task`"
        raise InputError(text, hint="--task embed")
    if not Path(folder).is_dir():
        raise InputError(f"`--source`: no such folder: `{folder}`")
    try:
        read = read_folder(Path(folder))
    except FolderRefused as err:
        raise InputError(f"`--source`: {err}", hint=err.hint) from err
    longest = read.longest or 512
    kind = str((read.config.get("architectures") or [""])[0])
    if options.task is None and kind.endswith(("ForCausalLM", "LMHeadModel")):
        weights = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        return Start(source, "text", longest=min(longest, 2048), weight_bytes=weights)
    task = options.task or "embed"
    if options.task is None and kind.endswith("ForSequenceClassification"):
        task = "rerank" if len(read.config.get("id2label") or "ab") == 1 else "classify"
    elif options.task is None and kind.endswith("ForTokenClassification"):
        task = "tokens"
    return Start(source, "text", task=task, longest=min(longest, 128))


def _check_writes(spec: Any) -> None:
    """That its engine knows the architecture."""
    from handlers.generation import UnknownModel, read_shape

    try:
        read_shape(spec.path(spec.model.folder))
    except UnknownModel as err:
        hint = "--task embed, for what it makes of a text"
        raise InputError(f"`--source`: `{spec.model.folder}`: {err}", hint=hint) from err


def _spec_of(start: Start) -> Any:
    from config.load import parse_spec

    return parse_spec(spec_text("mine", start, "sample.json"), Path("spec.yaml"), files=False)


def _loaded(start: Start) -> Any:
    """The source as the packager loads it."""
    from archiver.sources import load_source

    return load_source(_spec_of(start))
