"""`marina package`: source → graph → artifacts → agreement → MAR, each step with its time.

Nothing is written unless every step holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from archiver import agreement, compiling, lengths
from archiver.archive import file_hashes, lay_out, write_archive
from archiver.encoders import EncoderGraph, stage_encoding
from archiver.graph import build_graph, examples, output_ports
from archiver.inputs import Rows, batches, checked_inputs
from archiver.instructions import WITHOUT_VNNI, check_machine, key_of, targeting
from archiver.quantize import quantize
from archiver.source_code import stage_source
from archiver.sources import Source, load_source
from archiver.stage import stage_code, stage_labels, stage_sample
from archiver.toolchain import find_compiler
from archiver.writing import compare_text, draft_text
from config.errors import AgreementError, SourceError, ToolMissing
from config.progress import Progress
from config.record import Agreement, Artifact, Package, Record, file_sha256, write_json
from config.spec import Spec
from handlers.artifact import load_artifact, pick_device
from handlers.machine import machine_key
from handlers.networks import ImageGraph
from handlers.record import parse_record

# Of a language model's package, by the model in fp32.
LARGEST_PERPLEXITY_RATIO = 1.02
CACHE = "compile-cache"
PROGRAM = "program.pt2"


def package(spec: Spec, out: Path, *, progress: Progress) -> Package:
    """Writes `model.mar` and `package.json` into `out` and returns the record; AgreementError when the artifacts do not
    answer as the eager fp32 model does."""
    _check_tools(spec)
    check_machine(spec)
    with targeting(spec.model.cpu_target), tempfile.TemporaryDirectory(prefix="marina-package-") as scratch:
        staged = Path(scratch) / "staged"
        staged.mkdir()
        if spec.model.writes:
            draft, agreed = _package_text(spec, staged, progress)
            return _write(spec, staged, Path(scratch) / "laid-out", out, draft, agreed)
        with progress.step(f"load {spec.model.source}"):
            source = load_source(spec)
        draft = _draft(spec, source, staged)
        inputs = checked_inputs(spec, source, parse_record(draft | {"outputs": draft["inputs"]}).image)
        reference = build_graph(spec, source, "fp32")
        sample = next(batches(inputs, max(spec.model.batch_sizes)))[0]
        outputs = lengths.varying_outputs(spec, source, reference, output_ports(spec, reference, sample), sample)
        _check_classes(spec, source, reference, sample)
        draft["outputs"] = [port.model_dump(mode="json") for port in outputs]
        if spec.model.compile == "eager":
            _check_rows_are_apart(spec, reference, sample)
            draft["code"] = stage_source(spec, source, staged).model_dump(mode="json")
        else:
            _compile(spec, source, reference, inputs, staged, draft, progress)
        _write_draft(staged, draft)
        with progress.step("answer the sample as a worker"):
            _rehearse(spec, staged)
        comparing = progress.step(f"compare {len(inputs[0])} answers with eager fp32")
        # With a worker's threads: Inductor makes other kernels for other numbers of them.
        with comparing, compiling.quiet(), compiling.threads(spec.threads):
            agreed = _agreement(spec, source, reference, inputs, staged, draft)
        compiling.prune_cache(staged / CACHE)
        _check_agreement(spec, agreed)
        return _write(spec, staged, Path(scratch) / "laid-out", out, draft, agreed)


def _package_text(spec: Spec, staged: Path, progress: Progress) -> tuple[dict[str, Any], Agreement]:
    with progress.step(f"load {spec.model.source}"):
        draft = draft_text(spec, staged)
        _write_draft(staged, draft)
    with progress.step("answer the sample as a worker"):
        _rehearse(spec, staged)
    comparing = progress.step("compare what it writes with eager fp32")
    with comparing, compiling.threads(spec.threads):
        agreed = compare_text(draft, staged)
    _check_agreement(spec, agreed)
    return draft, agreed


def _check_tools(spec: Spec) -> None:
    if spec.model.compile in ("aot", "jit") or spec.model.on_mismatch == "jit":
        find_compiler()
    if spec.serving.device == "cuda" and not torch.cuda.is_available():
        raise ToolMissing(
            f"{spec.file}: `serving.device`: got `cuda`, but torch {torch.__version__} sees no GPU on this machine",
            hint="package on a machine with the GPU that will serve, or use `device: cpu`",
        )


def _draft(spec: Spec, source: Source, staged: Path) -> dict[str, Any]:
    """The record as far as it is known before compiling; stages the files it names."""
    model, serving = spec.model, spec.serving
    device = torch.device("cuda", 0) if serving.device == "cuda" else torch.device("cpu")
    image = None
    if source.image is not None:
        image = source.image.model_dump(mode="json")
        image["mean"], image["std"] = (source.image.per_channel(image[field]) for field in ("mean", "std"))
        image["resize"] = image["resize"] or max(source.image.height, source.image.width)
    return {
        "schema": "marina.package/1",
        "name": spec.name,
        "version": spec.version,
        "source": model.source,
        "weights": model.weights,
        "handler": stage_code(spec, staged),
        "precision": model.precision,
        "compile": model.compile,
        "on_mismatch": model.on_mismatch,
        "device": serving.device,
        "workers": spec.workers,
        "threads": spec.threads,
        "batch_sizes": list(model.batch_sizes),
        "image": image,
        "inputs": [port.model_dump(mode="json") for port in source.inputs],
        "labels": stage_labels(source, staged),
        "encoding": stage_encoding(spec, staged),
        "max_request_bytes": round(serving.max_request_mb * 1_000_000),
        "max_response_bytes": round(serving.max_response_mb * 1_000_000),
        "sample": stage_sample(spec, source, staged).model_dump(mode="json"),
        "key": key_of(model.cpu_target, machine_key(device)),
        "artifacts": [],
        "program": None,
        "cache": None,
        "code": None,
        "lengths": source.lengths.model_dump(mode="json") if source.lengths else None,
    }


def _check_classes(spec: Spec, source: Source, reference: nn.Module, sample: Rows) -> None:
    """Labels fit the classes the model tells apart."""
    if isinstance(reference, EncoderGraph):
        _check_labels(spec, source, reference.classes)
    if source.labels is None or not isinstance(reference, ImageGraph):
        return
    with torch.no_grad():
        classes = reference.network(reference.normalised(sample[0])).shape[-1]
    _check_labels(spec, source, classes)


def _check_labels(spec: Spec, source: Source, classes: int) -> None:
    if source.labels is not None and len(source.labels) != classes:
        raise SourceError(
            f"{spec.file}: `model.labels`: `{spec.model.labels}` has {len(source.labels)} labels, "
            f"but the model tells {classes} classes apart"
        )


def _check_rows_are_apart(spec: Spec, reference: nn.Module, sample: Rows) -> None:
    """The answer to a row is the same alone and in a batch: code that runs as it is may look at a whole batch."""
    run = agreement.eager(reference)
    together, alone = (agreement.answers(run, sample, size) for size in (len(sample[0]), 1))
    if isinstance(reference, ImageGraph) and reference.top_k:
        together, alone = together[:1], alone[:1]  # of two equal classes either may come first
    if agreement.compare_tensors(alone, together, spec.model.tolerance).agreement < 1:
        raise SourceError(
            f"{spec.file}: `model.batch_sizes`: got {list(spec.model.batch_sizes)}, but the model answers an input "
            "differently beside others than alone",
            hint="batch_sizes: [1], or a model whose decisions are made row by row",
        )


def _compile(
    spec: Spec,
    source: Source,
    reference: nn.Module,
    inputs: Rows,
    staged: Path,
    draft: dict[str, Any],
    progress: Progress,
) -> None:
    """Puts the compiled files into the staged folder and their names into the draft."""
    model, largest = spec.model, max(spec.model.batch_sizes)
    graph = reference if model.precision == "fp32" else build_graph(spec, source, model.precision)
    example = examples(spec, source, largest)
    with progress.step("export"):
        program = compiling.trace(spec, graph, example, source)
    module: nn.Module = program.module()
    if model.precision == "int8":
        with progress.step(f"calibrate int8 on {len(inputs[0])} inputs"):
            observed = [rows for rows, _ in batches(inputs, largest)]
            module = quantize(program, observed, reduce_range=model.cpu_target in WITHOUT_VNNI)
    if model.compile == "aot":
        artifacts: list[Artifact] = []
        for batch, length in product(model.batch_sizes, source.lengths.buckets if source.lengths else (None,)):
            of_length = f", length {length}" if length else ""
            with progress.step(f"compile {model.precision} for batch {batch}{of_length}"):
                rows = lengths.of_length(source, example, length)
                artifacts.append(compiling.compile_aot(spec, module, rows, batch, staged, length))
        draft["artifacts"] = [artifact.model_dump(mode="json") for artifact in artifacts]
    if model.compile != "aot" or model.on_mismatch == "jit":
        compiling.save_program(compiling.export_again(spec, module, example, source), staged / PROGRAM)
        draft["program"] = PROGRAM
    if model.compile == "jit":
        (staged / CACHE).mkdir()
        draft["cache"] = CACHE
        _write_draft(staged, draft)
        compiling_kernels = progress.step("compile as a worker does, keeping its kernels")
        with compiling_kernels, compiling.reproducible_compiler() as environment:
            _rehearse(spec, staged, environment)


def _write_draft(staged: Path, draft: dict[str, Any]) -> None:
    (staged / "marina.json").write_text(json.dumps(draft), encoding="utf-8")


def _rehearse(spec: Spec, staged: Path, environment: dict[str, str] | None = None) -> None:
    """The staged package is loaded, warmed and answers its own sample, in a process of its own."""
    script = Path(__file__).with_name("rehearse.py")
    # -P: neither this folder nor the current one is on the path, as in a worker.
    command = [sys.executable, "-P", str(script), str(staged)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=staged)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        hint = None
        if spec.model.compile == "eager" and last[0].startswith("ModuleNotFoundError"):
            hint = "put its code beside the model's file, or use another `compile`, which needs no source in a pod"
        text = f"{spec.file}: the packaged model does not start as a worker would start it: {last[0]}"
        raise SourceError(text, hint=hint)


def _agreement(
    spec: Spec, source: Source, reference: nn.Module, inputs: Rows, staged: Path, draft: dict[str, Any]
) -> Agreement:
    record = parse_record(draft)
    device = pick_device(record, 0 if spec.serving.device == "cuda" else None)
    path = sys.path[:]
    loaded = load_artifact(record, staged, device)
    measured: list[agreement.Compared] = []
    classes = isinstance(reference, ImageGraph) and reference.top_k > 0
    classes |= isinstance(reference, EncoderGraph) and reference.task == "classify"
    for batch in spec.model.batch_sizes:
        if source.lengths is not None:
            pairs = lengths.answers_by_bucket(source, agreement.eager(reference), loaded.run, inputs, batch, record)
            measured += [agreement.compare_tensors(*pair, spec.model.tolerance) for pair in pairs]
            continue
        expected = agreement.answers(agreement.eager(reference), inputs, batch)
        got = agreement.answers(loaded.run, inputs, batch)
        if classes:
            measured.append(agreement.compare_classes(expected, got))
        else:
            measured.append(agreement.compare_tensors(expected, got, spec.model.tolerance))
    sys.path[:] = path  # source that runs puts its folder there
    return agreement.worst(
        measured,
        inputs="generated" if spec.model.calibration is None else "calibration",
        count=len(inputs[0]),
        measure="top-1" if classes else "tolerance",
    )


def _check_agreement(spec: Spec, agreed: Agreement) -> None:
    if (agreed.perplexity_ratio or 1.0) > LARGEST_PERPLEXITY_RATIO:
        raise AgreementError(
            f"{spec.file}: `model.precision`: the perplexity of {spec.model.precision} is "
            f"{agreed.perplexity_ratio:.4f} times that of fp32 on {agreed.count} tokens, allowed: "
            f"{LARGEST_PERPLEXITY_RATIO:g}; no MAR was written",
            hint="precision: fp32",
        )
    if agreed.agreement < spec.model.min_agreement:
        hint = "use another `precision`, calibrate on more of the real inputs, or lower `min_agreement`"
        varying = [name for name, tensor in (spec.model.inputs or {}).items() if tensor.varying]
        if varying and not any(tensor.mask_of for tensor in (spec.model.inputs or {}).values()):
            hint = f"give the model a mask of what is padding: `mask: {{mask_of: {varying[0]}}}` under `inputs`"
        raise AgreementError(
            f"{spec.file}: `model.min_agreement`: the {spec.model.precision} artifact agrees with eager fp32 on "
            f"{agreed.agreement:.4f} of {agreed.count} {agreed.inputs} inputs ({agreed.measure}), "
            f"allowed: {spec.model.min_agreement:g} or more; no MAR was written",
            hint=hint,
        )


def _write(spec: Spec, staged: Path, laid_out: Path, out: Path, draft: dict[str, Any], agreed: Agreement) -> Package:
    (staged / "marina.json").unlink()
    lay_out(staged, laid_out, name=spec.name, version=spec.version)
    finished = draft | {"agreement": agreed.model_dump(), "files": file_hashes(laid_out)}
    record = Record.model_validate_json(json.dumps(finished))
    mar = out / "model.mar"
    write_archive(laid_out, record, mar)
    packaged = Package(mar=mar.name, sha256=file_sha256(mar), bytes=mar.stat().st_size, record=record)
    write_json(out / "package.json", packaged.model_dump(mode="json", by_alias=True))
    return packaged
