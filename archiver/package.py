"""`marina package`: source → graph → artifacts → agreement → MAR, and the time of each step.

The MAR is written only if every step succeeds."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import nn

from marina.archiver import agreement, compiling, lengths
from marina.archiver.adopting import stage_archive, unpack_archive, unpack_requirements
from marina.archiver.archive import file_hashes, lay_out, write_archive
from marina.archiver.calibration import Rows, batches, calibration_inputs
from marina.archiver.cpu_target import WITHOUT_VNNI, check_cpu_target, targeting
from marina.archiver.encoders import EncoderGraph
from marina.archiver.fetching import fetch_sources
from marina.archiver.graph import build_graph, check_output_sizes, check_scores, examples, output_ports
from marina.archiver.input_limits import check_limits, limited_inputs
from marina.archiver.language_model import (
    calibration_texts,
    compare_text,
    folder_warnings,
    stage_language_model,
    why_not_runnable,
)
from marina.archiver.picture_page import write_picture_page
from marina.archiver.picture_tasks import check_picture_task, picture_classes
from marina.archiver.quantize import quantize
from marina.archiver.rehearsal import check_sample_answer, keeping_worker_log, record_answer, rehearse
from marina.archiver.requirements import Resolved, clear_requirements, importable, resolve
from marina.archiver.rows import RowsMixed, check_repeatable, check_rows_apart, eager_runner
from marina.archiver.sounds import stage_sound
from marina.archiver.source_code import stage_source
from marina.archiver.sources import Source, load_source
from marina.archiver.staging import extend_draft, start_draft
from marina.archiver.toolchain import find_compiler
from marina.archiver.weights.adapters import merge_adapter
from marina.config.errors import SourceError, ToolMissing
from marina.config.progress import Progress
from marina.config.record import RECORD, TOLERANCE, Agreement, Draft, Package, Record, file_sha256, write_json
from marina.config.spec import Fetched, Spec
from marina.handlers.artifact import load_artifact, pick_device
from marina.handlers.networks import ImageGraph
from marina.handlers.record import parse_image, parse_record

CACHE = "compile-cache"
PROGRAM = "program.pt2"


_AS_IT_STANDS = Agreement(
    inputs="generated",
    count=0,
    measure="tolerance",
    agreement=None,
    not_judged="the archive's own handler answers",
    max_abs_difference=0,
    cosine=1,
)


@dataclass(frozen=True)
class StagedPackage:
    """A staged package: its record so far, and the comparison with eager fp32 that is still to run."""

    draft: Draft
    compare_title: str
    """The name of that step in the progress output; empty if there is nothing to compare."""
    compare: Callable[[], Agreement]


def package(spec: Spec, out: Path, *, progress: Progress) -> Package:
    """Writes `model.mar` and `package.json` to `out`. Raises AgreementError if the artifacts do not answer as the eager
    fp32 model does."""
    _check_tools(spec)
    check_cpu_target(spec)
    _check_writable(out)
    spec = fetch_sources(spec, progress)
    kinds = ((spec.model.writes, _stage_language_model), (spec.model.adopted, _stage_archive))
    stage = next((stage for is_kind, stage in (*kinds, (spec.model.listens, _stage_sound)) if is_kind), _stage_network)
    with (
        targeting(spec.model.cpu_target),
        tempfile.TemporaryDirectory(prefix="marina-package-") as scratch,
        # The user's code may print, but standard output is for the result.
        redirect_stdout(sys.stderr),
        keeping_worker_log(Path(scratch), out, progress),
    ):
        folder = Path(scratch) / "staged"
        folder.mkdir()
        spec = _with_adapter(spec, Path(scratch) / "merged", progress)
        libraries = _resolve_libraries(spec, Path(scratch), progress)
        with importable(libraries, Path(scratch)):
            staged = stage(spec, folder, progress)
            draft = extend_draft(staged.draft, requirements=libraries.requirements if libraries else None)
            _write_draft(folder, draft)
            agreed = _try_out(spec, staged, folder, progress)
            draft = record_answer(draft, folder)
        compiling.keep_only_kernels(folder / CACHE)
        agreement.check_agreement(spec, agreed)
        if warning := agreement.perplexity_warning(spec, agreed):
            progress.say(f"  {warning}")
        if page := write_picture_page(draft, folder, out):
            progress.say(f"  the sample and its answer: {page}")
        clear_requirements(out)
        if libraries:
            libraries.hand_over(out)
        return _write_package(spec, folder, Path(scratch) / "laid-out", out, draft, agreed)


def _resolve_libraries(spec: Spec, scratch: Path, progress: Progress) -> Resolved | None:
    """Resolves the requirements of the spec, or else those of the archive that it adopts."""
    if named := spec.model.requirements:
        return resolve(spec.path(named), f"{spec.file}: `model.requirements`", scratch, progress)
    if spec.model.adopted and (file := unpack_requirements(spec, scratch)):
        shown = f"{spec.path(spec.model.source)}: {file.name}"
        return resolve(file, f"{spec.file}: `model.source`", scratch, progress, shown=shown)
    return None


def _try_out(spec: Spec, staged: StagedPackage, folder: Path, progress: Progress) -> Agreement:
    """Lets a worker answer the sample, and compares the staged model with eager fp32."""
    if missing := why_not_runnable(staged.draft):
        progress.say(f"the sample is not answered: {missing}")
    else:
        # A cache of kernels was filled by a worker that answered the sample.
        if staged.draft.cache is None:
            with progress.step("answer the sample as a worker"):
                rehearse(spec, folder, progress)
        check_sample_answer(spec, staged.draft, folder)
    timed = progress.step(staged.compare_title) if staged.compare_title else nullcontext()
    # With a worker's number of threads, because Inductor compiles different kernels for different numbers.
    with timed, compiling.quiet(), compiling.torch_threads(spec.threads):
        return staged.compare()


def _check_writable(out: Path) -> None:
    """Raises OSError if a folder cannot be written to: it should not show only after minutes of compiling."""
    try:
        tempfile.TemporaryFile(dir=next(folder for folder in (out, *out.parents) if folder.exists())).close()
    except OSError as err:
        raise OSError(err.errno, err.strerror, str(out)) from err


def _with_adapter(spec: Spec, into: Path, progress: Progress) -> Spec:
    """The spec whose folder is that of the model merged with its adapter; unchanged if it has none."""
    if spec.model.adapter is None or spec.model.folder is None:
        return spec
    with progress.step(f"merge {spec.model.adapter}"):
        base = spec.path(spec.model.folder)
        merge_adapter(f"{spec.file}: `model.adapter`", base, spec.path(spec.model.adapter), into)
    merged = Fetched(into, spec.fetched[spec.model.folder].version if spec.model.folder in spec.fetched else "")
    return spec.with_fetched({**spec.fetched, spec.model.folder: merged})


def _stage_language_model(spec: Spec, folder: Path, progress: Progress) -> StagedPackage:
    """Stages a language model: the files of its folder, which are packed unchanged."""
    with progress.step(f"load {spec.model.source}"):
        draft = stage_language_model(spec, folder)
    for warning in folder_warnings(draft, folder):
        progress.say(f"  {warning}")
    texts, original = calibration_texts(spec), spec.path(spec.model.folder or "")
    return StagedPackage(
        draft, "compare what it writes with eager fp32", partial(compare_text, draft, folder, original, texts)
    )


def _stage_archive(spec: Spec, folder: Path, progress: Progress) -> StagedPackage:
    """Stages an archive that was made for TorchServe: its files, which are packed unchanged."""
    with progress.step(f"unpack {spec.model.source}"):
        draft = extend_draft(start_draft(spec, None, folder), archive=stage_archive(spec, folder))
    return StagedPackage(draft, "", lambda: _AS_IT_STANDS)


def _stage_sound(spec: Spec, folder: Path, progress: Progress) -> StagedPackage:
    """Stages a model that takes sound."""
    draft, compare = stage_sound(spec, folder, progress)
    return StagedPackage(draft, "compare what it hears with eager fp32", compare)


def _stage_network(spec: Spec, folder: Path, progress: Progress) -> StagedPackage:
    """Stages any other model: compiled, or its source code for `compile: eager`."""
    with progress.step(f"load {spec.model.source}"):
        source = load_source(spec)
    for note in source.notes:
        progress.say(f"  {note}")
    compiling.check_batch_sizes(spec, source)
    reference = build_graph(spec, source, "fp32")
    source = replace(source, inputs=limited_inputs(spec, source, reference))
    draft = start_draft(spec, source, folder)
    inputs = calibration_inputs(spec, source, parse_image(draft.image.model_dump()) if draft.image else None)
    sample = next(batches(inputs, max(spec.model.batch_sizes)))[0]
    ports = output_ports(spec, reference, sample)
    outputs = lengths.mark_varying_outputs(spec, source, reference, ports, sample)
    draft = extend_draft(draft, outputs=outputs)
    _check_labels(spec, source, reference, sample)
    with progress.step("answer rows alone and together"):
        check_row_answers(spec, reference, inputs)
        if source.lengths and not getattr(reference, "reads_padding", False):
            run = eager_runner(f"{spec.file}: `model.source`", reference)
            lengths.check_padding(spec, source, run, inputs, outputs)
        check_limits(spec, source, reference, tuple(value[: min(spec.model.batch_sizes)] for value in inputs))
    if spec.model.compile == "eager":
        draft = extend_draft(draft, code=stage_source(spec, source, folder))
    else:
        draft = _compile(spec, source, reference, inputs, draft, folder, progress)
    compare = partial(_compare_with_eager, spec, source, reference, inputs, draft, folder)
    return StagedPackage(draft, f"compare {len(inputs[0])} answers with eager fp32", compare)


def _check_tools(spec: Spec) -> None:
    if spec.model.compile in ("aot", "jit"):
        find_compiler()
    if spec.serving.device == "cuda" and spec.vllm is None and not torch.cuda.is_available():
        raise ToolMissing(
            f"{spec.file}: `serving.device`: got `cuda`, but torch {torch.__version__} sees no GPU on this machine",
            hint="package on a machine with the GPU that will serve, or use `device: cpu`",
        )


def _check_labels(spec: Spec, source: Source, reference: nn.Module, sample: Rows) -> None:
    """Raises SourceError unless there is one label per class of the model."""
    if source.labels is None:
        return
    if isinstance(reference, EncoderGraph):
        classes: int | None = reference.classes
    elif isinstance(reference, ImageGraph):
        classes = picture_classes(spec, reference, sample[0])
    else:
        return
    if classes is not None and len(source.labels) != classes:
        raise SourceError(
            f"{spec.file}: `model.labels`: `{spec.model.labels}` has {len(source.labels)} labels, "
            f"but the model has {classes} classes"
        )


def check_row_answers(spec: Spec, reference: nn.Module, inputs: Rows) -> None:
    """Raises SourceError unless the answer to a row is the same every time, alone and in a batch, whatever the other
    rows are."""
    where, largest = f"{spec.file}: `model.source`", max(spec.model.batch_sizes)
    if len(inputs[0]) < largest:
        text = f"holds {len(inputs[0])} rows, allowed: {largest} or more, the largest of `model.batch_sizes`"
        raise SourceError(f"{spec.file}: `model.calibration`: `{spec.model.calibration}` {text}")
    sample = tuple(value[:largest] for value in inputs)
    if spec.model.min_agreement > 0:
        check_repeatable(where, reference, inputs, largest)
    check_rows_apart(where, reference, inputs, largest)
    for size in spec.model.batch_sizes:
        output_ports(spec, reference, tuple(value[:size] for value in sample))
    check_output_sizes(spec, reference, inputs)
    run = eager_runner(where, reference)
    together, *others = (agreement.run_in_batches(run, sample, size) for size in reversed(spec.model.batch_sizes))
    if spec.model.min_agreement > 0 and any(bool(value.isnan().any()) for value in together):
        made_up = spec.model.calibration is None
        hint = "give the `min` and `max` of `model.inputs`, or a `calibration` with real inputs" if made_up else None
        weights = (name for name, value in reference.named_parameters() if value.isnan().any())
        if name := next(weights, None):
            hint = f"compare its weights with those of the training: `{name.removeprefix('network.')}` holds NaN"
        raise SourceError(
            f"{where}: the model answers some {'generated' if made_up else 'calibration'} inputs with NaN", hint=hint
        )
    if isinstance(reference, ImageGraph) and spec.model.handler == "image" and spec.model.task != "classify":
        check_picture_task(spec, reference, sample[0])
    if isinstance(reference, ImageGraph) and reference.top_k:
        check_scores(where, reference, sample[0])
        # Only probabilities are compared: classes that are equally likely may come in either order.
        together, others = together[:1], [answered[:1] for answered in others]
    tolerance = agreement.eager_tolerance(spec)
    if any(agreement.compare_tensors(answered, together, tolerance).agreement < 1 for answered in others):
        raise RowsMixed(
            f"{spec.file}: `model.batch_sizes`: got {list(spec.model.batch_sizes)}, but the model answers an input "
            "differently in a batch than alone",
            hint="use `batch_sizes: [1]`, or a model that decides for each row separately",
        )


def _compile(
    spec: Spec, source: Source, reference: nn.Module, inputs: Rows, draft: Draft, folder: Path, progress: Progress
) -> Draft:
    """Compiles the model into the staged folder, and adds the compiled files to the draft."""
    model, largest = spec.model, max(spec.model.batch_sizes)
    graph = reference if model.precision == "fp32" else build_graph(spec, source, model.precision)
    example = examples(spec, source, largest)
    with progress.step("export"):
        program = compiling.export_graph(spec, graph, example, source)
    module: nn.Module = program.module()
    if model.precision == "int8":
        with progress.step(f"calibrate int8 on {len(inputs[0])} inputs"):
            observed = [rows for rows, _ in batches(inputs, largest)]
            module = quantize(program, observed, reduce_range=model.cpu_target in WITHOUT_VNNI)
    if model.compile == "aot":
        tasks = []
        for batch, length in product(model.batch_sizes, lengths.compiled_lengths(source)):
            one_shape = compiling.export_shape(source, module, example, batch, length)
            tasks.append(compiling.task_for(spec, one_shape, batch, length))
        compiling.compile_all(tasks, folder, progress, f"compile {model.precision}")
        draft = extend_draft(draft, artifacts=tuple(task.artifact for task in tasks))
    if model.compile != "aot":
        compiling.save_program(compiling.reexport(spec, module, example, source), folder / PROGRAM)
        draft = extend_draft(draft, program=PROGRAM)
    if model.compile == "jit":
        draft = extend_draft(draft, cache=CACHE)
        _fill_cache(spec, draft, folder, progress)
    return draft


def _fill_cache(spec: Spec, draft: Draft, folder: Path, progress: Progress) -> None:
    """Starts the package as a worker would, so that the kernels it compiles stay in the package."""
    (folder / CACHE).mkdir()
    _write_draft(folder, draft)
    with (
        progress.step("answer as a worker, keeping its kernels"),
        compiling.reproducible_compiler() as environment,
    ):
        rehearse(spec, folder, progress, environment)


def _write_draft(folder: Path, draft: Draft) -> None:
    (folder / RECORD).write_text(draft.json_text(), encoding="utf-8")


def _compare_with_eager(
    spec: Spec, source: Source, reference: nn.Module, inputs: Rows, draft: Draft, folder: Path
) -> Agreement:
    """Compares the staged artifacts with the eager fp32 model, in every batch size and at every length."""
    record = parse_record(draft.to_data())
    device = pick_device(record, 0 if spec.serving.device == "cuda" else None)
    path = sys.path[:]
    loaded = load_artifact(record, folder, device)
    run_reference = eager_runner(f"{spec.file}: `model.source`", reference)
    classes = isinstance(reference, ImageGraph) and reference.top_k > 0
    classes |= isinstance(reference, EncoderGraph) and reference.task in ("classify", "fill")
    within = partial(agreement.compare_tensors, tolerance=TOLERANCE)
    compare = agreement.compare_classes if classes else within
    measured: list[agreement.Similarity] = []
    varies = [port.varies for port in record.outputs]
    by_bucket = lengths.padded_rows(spec, source, run_reference, inputs) if source.lengths else []
    for batch in spec.model.batch_sizes:
        measured += [compare(*lengths.aligned_answers(rows, loaded.run, batch, varies)) for rows in by_bucket]
        if not by_bucket:
            expected = agreement.run_in_batches(run_reference, inputs, batch)
            measured.append(compare(expected, agreement.run_in_batches(loaded.run, inputs, batch)))
    sys.path[:] = path  # with `compile: eager`, loading puts the source's folder there
    return agreement.worst_agreement(
        measured,
        inputs="generated" if spec.model.calibration is None else "calibration",
        count=len(inputs[0]),
        measure="top-1" if classes else "tolerance",
    )


def _write_package(spec: Spec, folder: Path, laid_out: Path, out: Path, draft: Draft, agreed: Agreement) -> Package:
    """Writes the MAR with its finished record, and `package.json`."""
    (folder / RECORD).unlink()
    archive = draft.archive
    name, version = (archive.name, archive.version) if archive else (draft.name, draft.version)
    if archive:
        shutil.rmtree(folder / archive.folder)
    lay_out(folder, laid_out, name=name, version=version)
    if archive:
        # Anew, because the handler may have written into its folder; and here, because torch-model-archiver leaves out
        # hidden folders.
        unpack_archive(spec, laid_out / archive.folder)
    finished = draft.to_data() | {"agreement": agreed.model_dump(mode="json"), "files": file_hashes(laid_out)}
    record = Record.model_validate_json(json.dumps(finished))
    mar = out / "model.mar"
    write_archive(laid_out, record, mar)
    packaged = Package(mar=mar.name, sha256=file_sha256(mar), bytes=mar.stat().st_size, record=record)
    write_json(out / "package.json", packaged.model_dump(mode="json", by_alias=True))
    return packaged
