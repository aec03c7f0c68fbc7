"""`marina package`: source → graph → artifacts → agreement → MAR, each step with its time.

Nothing is written unless every step holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import nn

from archiver import agreement, compiling, lengths
from archiver.archive import file_hashes, lay_out, write_archive
from archiver.encoders import EncoderGraph
from archiver.graph import build_graph, examples, output_ports
from archiver.inputs import Rows, batches, checked_inputs
from archiver.instructions import WITHOUT_VNNI, check_machine, targeting
from archiver.own import check_answer
from archiver.quantize import quantize
from archiver.rehearse import ANSWER
from archiver.rows import RowsMixed, check_alike, check_apart
from archiver.source_code import stage_source
from archiver.sources import Source, load_source
from archiver.stage import start_draft
from archiver.toolchain import find_compiler
from archiver.writing import compare_text, doubts, known_texts, missing_vllm, stage_text
from config.errors import AgreementError, SourceError, ToolMissing
from config.progress import Progress
from config.record import RECORD, Agreement, Draft, Package, Record, file_sha256, write_json
from config.spec import Spec
from handlers.artifact import load_artifact, pick_device
from handlers.networks import ImageGraph
from handlers.record import ImageSpec, parse_record

# Of a language model's package, by the model in fp32.
LARGEST_PERPLEXITY_RATIO = 1.02
CACHE = "compile-cache"
PROGRAM = "program.pt2"


@dataclass(frozen=True)
class Built:
    """A staged package: its record as far as it is known, and how its answers are compared with eager fp32."""

    draft: Draft
    comparing: str
    compare: Callable[[], Agreement]


def package(spec: Spec, out: Path, *, progress: Progress) -> Package:
    """Writes `model.mar` and `package.json` into `out` and returns the record; AgreementError when the artifacts do not
    answer as the eager fp32 model does."""
    _check_tools(spec)
    check_machine(spec)
    with targeting(spec.model.cpu_target), tempfile.TemporaryDirectory(prefix="marina-package-") as scratch:
        staged = Path(scratch) / "staged"
        staged.mkdir()
        built = (_text if spec.model.writes else _network)(spec, staged, progress)
        _write_draft(staged, built.draft)
        if missing := missing_vllm(built.draft):
            progress.say(f"the sample is not answered: {missing}")
        else:
            with progress.step("answer the sample as a worker"):
                _rehearse(spec, staged)
                _check_answer(spec, built.draft, staged)
        # With a worker's threads: Inductor makes other kernels for other numbers of them.
        with progress.step(built.comparing), compiling.quiet(), compiling.threads(spec.threads):
            agreed = built.compare()
        compiling.prune_cache(staged / CACHE)
        check_agreement(spec, agreed)
        if doubt := _doubted(spec, agreed):
            progress.say(f"  {doubt}")
        return _write(staged, Path(scratch) / "laid-out", out, built.draft, agreed)


def _text(spec: Spec, staged: Path, progress: Progress) -> Built:
    """A language model: its files as they are."""
    with progress.step(f"load {spec.model.source}"):
        draft = stage_text(spec, staged)
    for doubt in doubts(draft, staged):
        progress.say(f"  {doubt}")
    known, original = known_texts(spec), spec.path(spec.model.folder or "")
    return Built(draft, "compare what it writes with eager fp32", lambda: compare_text(draft, staged, original, known))


def _network(spec: Spec, staged: Path, progress: Progress) -> Built:
    """Every other model: its source as it is, or compiled."""
    with progress.step(f"load {spec.model.source}"):
        source = load_source(spec)
    for note in source.notes:
        progress.say(f"  {note}")
    draft = start_draft(spec, source, staged)
    inputs = checked_inputs(spec, source, ImageSpec(**draft.image.model_dump()) if draft.image else None)
    reference = build_graph(spec, source, "fp32")
    sample = next(batches(inputs, max(spec.model.batch_sizes)))[0]
    outputs = lengths.varying_outputs(spec, source, reference, output_ports(spec, reference, sample), sample)
    _check_classes(spec, source, reference, sample)
    with progress.step("answer rows alone and together"):
        check_rows(spec, reference, inputs)
    if spec.model.compile == "eager":
        added: dict[str, object] = {"code": stage_source(spec, source, staged)}
    else:
        added = _compile(spec, source, reference, inputs, staged, progress)
    draft = draft.model_copy(update={"outputs": outputs, **added})
    if draft.cache is not None:
        _fill_cache(spec, staged, draft, progress)
    comparing = f"compare {len(inputs[0])} answers with eager fp32"
    return Built(draft, comparing, lambda: _agreement(spec, source, reference, inputs, staged, draft))


def _check_tools(spec: Spec) -> None:
    if spec.model.compile in ("aot", "jit") or spec.model.on_mismatch == "jit":
        find_compiler()
    if spec.serving.device == "cuda" and spec.vllm is None and not torch.cuda.is_available():
        raise ToolMissing(
            f"{spec.file}: `serving.device`: got `cuda`, but torch {torch.__version__} sees no GPU on this machine",
            hint="package on a machine with the GPU that will serve, or use `device: cpu`",
        )


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


def check_rows(spec: Spec, reference: nn.Module, inputs: Rows) -> None:
    """The answer to a row is the same every time, alone and in a batch, whoever is beside it."""
    where, largest = f"{spec.file}: `model.source`", max(spec.model.batch_sizes)
    sample = tuple(value[:largest] for value in inputs)
    if spec.model.min_agreement > 0:
        check_alike(where, reference, inputs, largest)
    check_apart(where, reference, inputs, largest)
    run = agreement.eager(reference)
    together, *others = (agreement.answers(run, sample, size) for size in reversed(spec.model.batch_sizes))
    if isinstance(reference, ImageGraph) and reference.top_k:
        # Of two equal classes either comes first.
        together, others = together[:1], [answered[:1] for answered in others]
    if any(agreement.compare_tensors(answered, together, spec.model.tolerance).agreement < 1 for answered in others):
        raise RowsMixed(
            f"{spec.file}: `model.batch_sizes`: got {list(spec.model.batch_sizes)}, but the model answers an input "
            "differently beside others than alone",
            hint="batch_sizes: [1], or a model whose decisions are made row by row",
        )


def _compile(
    spec: Spec, source: Source, reference: nn.Module, inputs: Rows, staged: Path, progress: Progress
) -> dict[str, object]:
    """Puts the compiled files into the staged folder; what the record says of them."""
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
    tasks: list[compiling.Task] = []
    if model.compile == "aot":
        for batch, length in product(model.batch_sizes, lengths.compiled(source)):
            one_shape = compiling.export_for(source, module, example, batch, length)
            tasks.append(compiling.task_for(spec, one_shape, batch, length))
        compiling.compile_all(tasks, staged, progress, f"compile {model.precision}")
    needs_program = model.compile != "aot" or model.on_mismatch == "jit"
    if needs_program:
        compiling.save_program(compiling.export_again(spec, module, example, source), staged / PROGRAM)
    return {
        "artifacts": tuple(task.artifact for task in tasks),
        "program": PROGRAM if needs_program else None,
        "cache": CACHE if model.compile == "jit" else None,
    }


def _fill_cache(spec: Spec, staged: Path, draft: Draft, progress: Progress) -> None:
    """A worker starts, and what it compiles meanwhile stays in the package."""
    (staged / CACHE).mkdir()
    _write_draft(staged, draft)
    compiling_kernels = progress.step("compile as a worker does, keeping its kernels")
    with compiling_kernels, compiling.reproducible_compiler() as environment:
        _rehearse(spec, staged, environment)


def _write_draft(staged: Path, draft: Draft) -> None:
    (staged / RECORD).write_text(draft.json_text(), encoding="utf-8")


def _check_answer(spec: Spec, draft: Draft, staged: Path) -> None:
    """An own handler gives what it says; the rehearsal left the answer beside the package."""
    if draft.gives is not None:
        kind, _, body = (staged.parent / ANSWER).read_bytes().partition(b"\n")
        check_answer(spec, draft.gives, kind.decode(), body)


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


def _agreement(spec: Spec, source: Source, reference: nn.Module, inputs: Rows, staged: Path, draft: Draft) -> Agreement:
    record = parse_record(draft.to_data())
    device = pick_device(record, 0 if spec.serving.device == "cuda" else None)
    path = sys.path[:]
    loaded = load_artifact(record, staged, device)
    run_reference = agreement.eager(reference)
    classes = isinstance(reference, ImageGraph) and reference.top_k > 0
    classes |= isinstance(reference, EncoderGraph) and reference.task == "classify"
    within = partial(agreement.compare_tensors, tolerance=spec.model.tolerance)
    compare = agreement.compare_classes if classes else within
    measured: list[agreement.Compared] = []
    texts = spec.model.task is not None and spec.model.calibration is not None
    by_length = lengths.cases(source, run_reference, inputs, texts=texts) if source.lengths else []
    for batch in spec.model.batch_sizes:
        measured += [compare(*lengths.answers(case, loaded.run, batch, record)) for case in by_length]
        if not by_length:
            expected = agreement.answers(run_reference, inputs, batch)
            measured.append(compare(expected, agreement.answers(loaded.run, inputs, batch)))
    sys.path[:] = path  # source that runs puts its folder there
    return agreement.worst(
        measured,
        inputs="generated" if spec.model.calibration is None else "calibration",
        count=len(inputs[0]),
        measure="top-1" if classes else "tolerance",
    )


def check_agreement(spec: Spec, agreed: Agreement) -> None:
    """AgreementError where the artifacts answer otherwise than the eager fp32 model, or that reads like none."""
    if (agreed.perplexity_ratio or 1.0) > LARGEST_PERPLEXITY_RATIO:
        raise AgreementError(
            f"{spec.file}: `model.precision`: the perplexity of {spec.model.precision} is "
            f"{agreed.perplexity_ratio:.4f} times that of fp32 on {agreed.count} tokens, allowed: "
            f"{LARGEST_PERPLEXITY_RATIO:g}; no MAR was written",
            hint="precision: int8" if spec.model.precision == "int4" else "precision: fp32",
        )
    if agreed.agreement is not None and agreed.agreement < spec.model.min_agreement:
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
    _check_knowledge(spec, agreed)


def _check_knowledge(spec: Spec, agreed: Agreement) -> None:
    """A language model can read what it should know. That it agrees with itself in fp32 does not say so: what is wrong
    in its configuration is wrong there, too."""
    if spec.model.calibration is None or agreed.perplexity is None or agreed.guessing is None:
        return
    allowed = spec.writing.max_perplexity
    if agreed.perplexity > (agreed.guessing if allowed is None else allowed):
        most = f"{agreed.guessing}, which is guessing" if allowed is None else f"{allowed:g}"
        raise AgreementError(
            f"{spec.file}: `text.max_perplexity`: the texts of `model.calibration` have a perplexity of "
            f"{agreed.perplexity:.4g} for the model in fp32, allowed: {most}; no MAR was written",
            hint="compare `config.json` and `tokenizer.json` with those that the weights were trained with",
        )


def _doubted(spec: Spec, agreed: Agreement) -> str | None:
    """What is said of a language model that reads like none, where nobody says what it should know."""
    if spec.model.calibration is not None or agreed.perplexity is None or agreed.perplexity < (agreed.guessing or 0):
        return None
    return (
        f"the model reads plain English no better than by guessing, perplexity {agreed.perplexity:.4g} with "
        f"{agreed.guessing} tokens: its configuration or its weights may be wrong"
    )


def _write(staged: Path, laid_out: Path, out: Path, draft: Draft, agreed: Agreement) -> Package:
    (staged / RECORD).unlink()
    lay_out(staged, laid_out, name=draft.name, version=draft.version)
    finished = draft.to_data() | {"agreement": agreed.model_dump(mode="json"), "files": file_hashes(laid_out)}
    record = Record.model_validate_json(json.dumps(finished))
    mar = out / "model.mar"
    write_archive(laid_out, record, mar)
    packaged = Package(mar=mar.name, sha256=file_sha256(mar), bytes=mar.stat().st_size, record=record)
    write_json(out / "package.json", packaged.model_dump(mode="json", by_alias=True))
    return packaged
