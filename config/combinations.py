"""What fields of a spec may not be together, and which files it names must exist.

Each rule is a generator over a whole spec of (field, text, hint), and names the fields it looks at: it is left out when
one of them is already known to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from config.errors import listed, nearest
from config.quantity import quantity
from config.spec import Spec
from config.torchvision_models import unknown_model
from config.yaml_lines import Location

PRECISIONS = {"cpu": ("bf16", "fp32", "int8"), "cuda": ("bf16", "fp16", "fp32")}
WEIGHT_SUFFIXES = (".pt", ".pth", ".safetensors")
SAMPLE_SUFFIXES = (".jpeg", ".jpg", ".json", ".npy", ".png", ".webp")


@dataclass(frozen=True)
class Conflict:
    """One broken rule: the place its line points at, what to say, and what to type."""

    location: Location
    text: str
    hint: str | None = None


Found = Iterator[tuple[str, str, str | None]]
Rule = Callable[[Spec], Found]
# Rules about the form of one value come first: what such a rule refuses is not looked at again by another.
_FORMS: list[tuple[tuple[str, ...], Rule]] = []
_COMBINATIONS: list[tuple[tuple[str, ...], Rule]] = []
_FILES: list[tuple[tuple[str, ...], Rule]] = []


def find_conflicts(spec: Spec, broken: set[Location], *, files: bool) -> list[Conflict]:
    """Every rule that the spec breaks, except those that look at a broken location; with `files` also what it names and
    is not there."""
    found = _broken_rules(_FORMS, spec, broken)
    broken = broken | {conflict.location for conflict in found}
    return found + _broken_rules(_COMBINATIONS + (_FILES if files else []), spec, broken)


def _broken_rules(rules: list[tuple[tuple[str, ...], Rule]], spec: Spec, broken: set[Location]) -> list[Conflict]:
    applied = [
        rule for fields, rule in rules if not any(_touches(field, place) for field in fields for place in broken)
    ]
    return [Conflict(tuple(at.split(".")), text, hint) for rule in applied for at, text, hint in rule(spec)]


def _touches(field: str, location: Location) -> bool:
    """Whether a field is, lies in, or holds a location."""
    return all(part == other for part, other in zip(field.split("."), location, strict=False))


def _rule(*fields: str, into: list[tuple[tuple[str, ...], Rule]] = _COMBINATIONS) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        into.append((fields, rule))
        return rule

    return register


@_rule("model.source", into=_FORMS)
def _source_form(spec: Spec) -> Found:
    source = spec.model.source
    kind, _, name = source.partition(":")
    if not (kind == "torchvision" and name) and not source.endswith(".pt2") and not (kind.endswith(".py") and name):
        allowed = "`torchvision:NAME`, `./file.py:factory` or `./program.pt2`"
        yield "model.source", f"got `{source}`, allowed: {allowed}", None


@_rule("model.source", "model.weights")
def _weights_form(spec: Spec) -> Found:
    source, weights = spec.model.source, spec.model.weights
    if source.endswith(".pt2"):
        if weights is not None:
            yield "model.weights", f"got `{weights}`, but `{source}` holds its own weights", "delete `weights`"
        return
    if weights is None:
        named = (
            "`random`, a weights name such as `IMAGENET1K_V2`, or a file"
            if _torchvision(spec)
            else "a file or `random`"
        )
        yield "model.weights", f"missing: `{source}` needs weights, allowed: {named}", "add `weights` under `model`"
    elif weights != "random" and not _torchvision(spec) and not weights.endswith(WEIGHT_SUFFIXES):
        yield (
            "model.weights",
            f"got `{weights}`, allowed: `random` or a file that ends in {listed(WEIGHT_SUFFIXES)}",
            None,
        )


@_rule("model.handler", into=_FORMS)
def _handler_form(spec: Spec) -> Found:
    handler = spec.model.handler
    file, _, name = handler.partition(":")
    if handler not in ("image", "tensor") and not (file.endswith(".py") and name.isidentifier()):
        close = nearest(handler, ("image", "tensor"))
        hint = f"did you mean `{close}`?" if close else None
        yield "model.handler", f"got `{handler}`, allowed: `image`, `tensor` or `./file.py:Class`", hint
    elif file.endswith(".py") and not Path(file).stem.isidentifier():
        yield "model.handler", f"got `{handler}`, allowed: a file name that Python can import", None


@_rule("model.handler", "model.source", "model.image", "model.inputs", "model.labels")
def _inputs_fit_handler(spec: Spec) -> Found:
    model = spec.model
    if model.handler == "image":
        if model.image is None and not _torchvision(spec):
            yield (
                "model.image",
                f"missing: `{model.source}` does not say what its images look like",
                "add `image: {height: 224, width: 224}` under `model`",
            )
        if model.inputs is not None:
            yield "model.inputs", "not for the `image` handler, whose input is described by `image`", "delete `inputs`"
    elif model.inputs is None and not model.source.endswith(".pt2") and not _own_image(spec):
        yield (
            "model.inputs",
            f"missing: the handler `{model.handler}` needs the inputs of `{model.source}`",
            "add `inputs: {x: {shape: [3, 4], dtype: float32}}` under `model`",
        )
    if model.handler == "tensor":
        if model.image is not None:
            yield (
                "model.image",
                "not for the `tensor` handler, whose inputs are described by `inputs`",
                "delete `image`",
            )
        if model.labels is not None:
            yield "model.labels", "not for the `tensor` handler, whose answers have no classes", "delete `labels`"


def _own_image(spec: Spec) -> bool:
    """An own handler that takes images: its input is the picture."""
    return spec.model.handler != "tensor" and (spec.model.image is not None or _torchvision(spec))


@_rule("model.inputs")
def _input_ranges(spec: Spec) -> Found:
    for name, tensor in (spec.model.inputs or {}).items():
        if tensor.min is not None and tensor.max is not None and tensor.min > tensor.max:
            yield f"model.inputs.{name}.min", f"got {tensor.min:g}, but `max` is {tensor.max:g}", None


@_rule("model.image", "model.handler")
def _classes_are_named(spec: Spec) -> Found:
    if spec.model.image and spec.model.image.top_k == 0 and spec.model.handler == "image":
        yield "model.image.top_k", "got 0, but answers of the `image` handler name classes", "top_k: 5"


@_rule("model.image")
def _crop_fits_resize(spec: Spec) -> Found:
    image = spec.model.image
    if image and image.resize is not None and image.resize < max(image.height, image.width):
        yield (
            "model.image.resize",
            f"got {image.resize}, but {image.height}×{image.width} is cut out of it",
            f"resize: {max(image.height, image.width)}",
        )


@_rule("model.precision", "serving.device")
def _precision_fits_device(spec: Spec) -> Found:
    device, precision = spec.serving.device, spec.model.precision
    if precision not in PRECISIONS[device]:
        yield "model.precision", f"got `{precision}` on `{device}`, allowed: {listed(PRECISIONS[device])}", None


@_rule("model.precision", "model.calibration")
def _int8_is_calibrated(spec: Spec) -> Found:
    if spec.model.precision == "int8" and spec.model.calibration is None:
        yield (
            "model.calibration",
            "missing: `precision: int8` is calibrated on real inputs",
            "add `calibration: ./calibration`, a folder of images or `.npy` inputs",
        )


@_rule("model.compile", "model.on_mismatch")
def _mismatch_needs_aot(spec: Spec) -> Found:
    model = spec.model
    if model.on_mismatch == "jit" and model.compile != "aot":
        yield (
            "model.on_mismatch",
            f"got `jit`, but `compile: {model.compile}` ships nothing that could mismatch",
            "delete `on_mismatch`",
        )


@_rule("serving.max_batch", "model.batch_sizes")
def _batch_is_compiled(spec: Spec) -> Found:
    largest = max(spec.model.batch_sizes)
    if spec.max_batch > largest:
        yield (
            "serving.max_batch",
            f"got {spec.max_batch}, but the largest of `model.batch_sizes` is {largest}",
            f"add {spec.max_batch} to `model.batch_sizes`, or use `max_batch: {largest}`",
        )


@_rule("serving.queue", "serving.max_batch", "model.batch_sizes")
def _queue_holds_a_batch(spec: Spec) -> Found:
    if spec.serving.queue < spec.max_batch:
        yield "serving.queue", f"got {spec.serving.queue}, but a batch of {spec.max_batch} waits in it", None


@_rule("serving.workers", "serving.threads", "serving.device", "kubernetes.resources")
def _threads_fit_cpu(spec: Spec) -> Found:
    wanted = spec.workers * spec.threads
    if wanted > max(1, spec.cores):
        yield (
            "serving.workers",
            f"got {spec.workers} workers × {spec.threads} threads = {wanted}, "
            f"but `kubernetes.resources.cpu` is {spec.cores:g}",
            f'use fewer, or `cpu: "{wanted}"`',
        )


@_rule("serving.device", "serving.workers", "kubernetes.resources")
def _gpus_fit_device(spec: Spec) -> Found:
    gpus = spec.kubernetes.resources.gpu
    if spec.serving.device == "cuda" and gpus == 0:
        yield "kubernetes.resources.gpu", "got 0, but `serving.device` is `cuda`", "gpu: 1"
    elif spec.serving.device == "cpu" and gpus > 0:
        yield "kubernetes.resources.gpu", f"got {gpus}, but `serving.device` is `cpu`", "gpu: 0, or `device: cuda`"
    elif gpus and spec.workers % gpus:
        text = f"got {gpus}, but `serving.workers` is {spec.workers}: workers must be a multiple of GPUs"
        yield "kubernetes.resources.gpu", text, None


@_rule("kubernetes.resources", "serving", "model.batch_sizes", "model.handler", "model.image")
def _heap_fits_memory(spec: Spec) -> Found:
    if spec.kubernetes.resources.memory == "auto":
        return
    memory_mb = quantity(spec.kubernetes.resources.memory) / 1e6
    if spec.serving.java_heap_mb * 1.048576 > memory_mb / 2:
        yield (
            "serving.java_heap_mb",
            f"got {spec.serving.java_heap_mb}, but `kubernetes.resources.memory` is "
            f"{spec.kubernetes.resources.memory} and workers need the larger half",
            None,
        )
    elif (worst_mb := spec.workers * spec.largest_batch_bytes / 1e6) > memory_mb - spec.serving.java_heap_mb:
        text = f"the largest batches permitted take {worst_mb:.0f} MB on {spec.workers} workers, beside Java and models"
        yield "kubernetes.resources.memory", text, "less `max_request_mb` or `max_batch`, or `memory: auto`"


@_rule("serving.retry_window_s", "serving.startup_timeout_s")
def _retry_covers_startup(spec: Spec) -> Found:
    least = spec.serving.startup_timeout_s + 60
    if spec.serving.retry_window_s < least:
        yield (
            "serving.retry_window_s",
            f"got {spec.serving.retry_window_s}, but a start may take {least} s with its pauses",
            f"retry_window_s: {least}",
        )


@_rule("slo.p99_ms", "serving.response_timeout_s")
def _slo_below_timeout(spec: Spec) -> Found:
    if spec.slo and spec.slo.p99_ms != 1e9 and spec.slo.p99_ms > spec.serving.response_timeout_s * 1000:
        yield (
            "slo.p99_ms",
            f"got {spec.slo.p99_ms:g}, but workers are killed after {spec.serving.response_timeout_s} s",
            "raise `serving.response_timeout_s`, or lower `slo.p99_ms`",
        )


@_rule("slo.p99_ms", "serving.max_batch_delay_ms", "serving.max_batch", "model.batch_sizes")
def _slo_above_batch_delay(spec: Spec) -> Found:
    if spec.slo and spec.max_batch > 1 and spec.slo.p99_ms <= spec.serving.max_batch_delay_ms:
        yield (
            "slo.p99_ms",
            f"got {spec.slo.p99_ms:g}, but a lone request waits {spec.serving.max_batch_delay_ms} ms for its batch",
            "lower `serving.max_batch_delay_ms`",
        )


@_rule("scaling.min_replicas", "scaling.max_replicas")
def _replicas_ordered(spec: Spec) -> Found:
    low, high = spec.scaling.min_replicas, spec.scaling.max_replicas
    if low > high:
        yield "scaling.min_replicas", f"got {low}, but `max_replicas` is {high}", None


@_rule("scaling.metric", "scaling.autoscaler", "kubernetes.resources.gpu")
def _gpus_can_be_watched(spec: Spec) -> Found:
    if spec.scaling.metric == "gpu" and spec.kubernetes.resources.gpu == 0:
        yield "scaling.metric", "got `gpu`, but `kubernetes.resources.gpu` is 0", "metric: requests"


@_rule("kubernetes.network")
def _policy_is_rendered(spec: Spec) -> Found:
    network = spec.kubernetes.network
    for name in ("clients", "egress"):
        if getattr(network, name) and not network.policy:
            field = f"kubernetes.network.{name}"
            yield field, "given, but `policy` is `false`, so nothing would come of it", f"delete `{name}`"


@_rule("model", "load", into=_FILES)
def _named_files_exist(spec: Spec) -> Found:
    model = spec.model
    named: dict[str, str | None] = {
        "model.source": None if _torchvision(spec) else model.source.partition(":")[0],
        "model.handler": None if model.handler in ("image", "tensor") else model.handler.partition(":")[0],
        "model.labels": None if model.labels == "imagenet" else model.labels,
        "load.sample": spec.load.sample,
    }
    if model.weights and model.weights.endswith(WEIGHT_SUFFIXES):
        named["model.weights"] = model.weights
    for field, file in named.items():
        if file and not spec.path(file).is_file():
            yield field, f"no such file: `{spec.path(file)}`", _in_its_place(spec, field, file)
    if model.calibration and not spec.path(model.calibration).is_dir():
        yield "model.calibration", f"no such folder: `{spec.path(model.calibration)}`", None


@_rule("model.source", into=_FILES)
def _torchvision_has_it(spec: Spec) -> Found:
    if _torchvision(spec) and (unknown := unknown_model(spec.model.source.removeprefix("torchvision:"))):
        yield "model.source", *unknown


def _in_its_place(spec: Spec, field: str, file: str) -> str:
    """What to type for a file that is not there: its neighbour of a similar name, or how to do without."""
    folder, key = spec.path(file).parent, field.rpartition(".")[2]
    beside = [each.name for each in folder.iterdir() if each.is_file()] if folder.is_dir() else []
    if close := nearest(Path(file).name, beside):
        return f"{key}: {file.removesuffix(Path(file).name)}{close}"
    otherwise = {"weights": ", or try the rest with `weights: random`", "handler": "", "source": ""}
    return "put it there" + otherwise.get(key, f", or delete `{key}`")


@_rule("load.sample")
def _sample_form(spec: Spec) -> Found:
    if (sample := spec.load.sample) and not sample.lower().endswith(SAMPLE_SUFFIXES):
        yield "load.sample", f"got `{sample}`, allowed: a file that ends in {listed(SAMPLE_SUFFIXES)}", None


def _torchvision(spec: Spec) -> bool:
    return spec.model.source.startswith("torchvision:")
