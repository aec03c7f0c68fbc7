"""Rules about the inputs of a model, and how it is compiled."""

from marina.config.combinations.rule import Conflicts, rule
from marina.config.errors import listed
from marina.config.spec import Spec

PRECISIONS = {"cpu": ("bf16", "fp32", "int8"), "cuda": ("bf16", "fp16", "fp32")}


@rule("model.handler", "model.source", "model.image", "model.inputs")
def _inputs_are_known(spec: Spec) -> Conflicts:
    model = spec.model
    if model.folder or model.adopted:
        return
    if model.handler == "image":
        if model.image is None and not model.from_torchvision:
            text = f"missing: `{model.source}` does not say what size its pictures have"
            yield "model.image", text, "add `image: {height: 224, width: 224}` under `model`"
    elif model.inputs is None and not model.source.endswith(".pt2") and not _own_handler_takes_pictures(spec):
        text = f"missing: the handler `{model.handler}` needs the inputs of `{model.source}`"
        yield "model.inputs", text, "add `inputs: {x: {shape: [3, 4], dtype: float32}}` under `model`"


def _own_handler_takes_pictures(spec: Spec) -> bool:
    return spec.model.handler != "tensor" and (spec.model.image is not None or spec.model.from_torchvision)


@rule("model.inputs")
def _input_ranges(spec: Spec) -> Conflicts:
    for name, tensor in (spec.model.inputs or {}).items():
        if tensor.min is not None and tensor.max is not None and tensor.min > tensor.max:
            yield f"model.inputs.{name}.min", f"got {tensor.min:g}, but `max` is {tensor.max:g}", None
        if tensor.dtype == "uint8" and tensor.min is not None and tensor.min < 0:
            # Shorter rows are padded with it.
            yield f"model.inputs.{name}.min", f"got {tensor.min:g}, allowed for `uint8`: 0 or more", None


@rule("model.inputs")
def _one_length(spec: Spec) -> Conflicts:
    """All inputs of a request that vary have the same length."""
    inputs = spec.model.inputs or {}
    first = next((tensor.varying for tensor in inputs.values() if tensor.varying), None)
    masks = [name for name, tensor in inputs.items() if tensor.mask_of]
    for name, tensor in inputs.items():
        field = f"model.inputs.{name}"
        if sum(not isinstance(side, int) for side in tensor.shape) > 1:
            yield f"{field}.shape", "two dimensions vary, allowed: one", None
        elif tensor.varying and tensor.varying != first:
            text = "varies in another way than the input before it, allowed: one length for all inputs of a request"
            yield f"{field}.shape", text, None
        if not tensor.mask_of:
            if "shape" not in tensor.model_fields_set:
                yield f"{field}.shape", "missing", "shape: [3, 4], without the batch"
            continue
        if tensor.shape:
            yield f"{field}.shape", "given, but a mask has the length of its input", "delete `shape`"
        of = inputs.get(tensor.mask_of)
        if of is None or not of.varying:
            known = listed(other for other, candidate in inputs.items() if candidate.varying) or "none"
            yield f"{field}.mask_of", f"got `{tensor.mask_of}`, allowed: an input that varies: {known}", None
        elif name != masks[0]:
            yield f"{field}.mask_of", f"a second mask, after `{masks[0]}`; all inputs have the same length", None


@rule("model.image", "model.handler")
def _classes_are_named(spec: Spec) -> Conflicts:
    if spec.model.image and spec.model.image.top_k == 0 and spec.model.task == "classify":
        yield "model.image.top_k", "got 0, but answers of the `image` handler name classes", "top_k: 5"


@rule("model.task", "model.detection", "model.labels", "model.activation", "model.mask_size")
def _the_task_has_its_fields(spec: Spec) -> Conflicts:
    model = spec.model
    if model.handler != "image":
        return
    if model.detection is not None and model.task != "detect":
        yield "model.detection", f"not for `task: {model.task}`", "delete `detection`"
    if model.mask_size != "input" and model.task != "segment":
        yield "model.mask_size", f"not for `task: {model.task}`", "delete `mask_size`"
    if model.labels is not None and model.task in ("embed", "segment"):
        yield "model.labels", f"not for `task: {model.task}`, whose answers name no classes", "delete `labels`"
    if model.activation is not None and model.task == "embed":
        yield "model.activation", "not for `task: embed`, whose numbers are answered as they are", "delete `activation`"


@rule("model.image")
def _crop_fits_resize(spec: Spec) -> Conflicts:
    image = spec.model.image
    if image and image.fit == "letterbox" and image.resize is not None:
        yield "model.image.resize", "not for `fit: letterbox`, in which all of the picture is seen", "delete `resize`"
    elif image and image.resize is not None and image.resize < max(image.height, image.width):
        text = f"got {image.resize}, but {image.height}×{image.width} is cut out of it"
        yield "model.image.resize", text, f"resize: {max(image.height, image.width)}"


@rule("model.precision", "model.handler", "serving.device")
def _precision_fits_device(spec: Spec) -> Conflicts:
    device, precision = spec.serving.device, spec.model.precision
    # Which of them a language model may have is another rule: `writing._engine_fits_the_model`.
    if spec.model.adopted:
        return
    if precision not in PRECISIONS[device] and not (precision == "int4" and spec.model.writes):
        yield "model.precision", f"got `{precision}` on `{device}`, allowed: {listed(PRECISIONS[device])}", None


@rule("model.precision", "model.calibration")
def _int8_is_calibrated(spec: Spec) -> Conflicts:
    if spec.model.precision == "int8" and spec.model.calibration is None and not spec.model.writes:
        text = "missing: `precision: int8` is calibrated on real inputs"
        yield "model.calibration", text, "add `calibration: ./calibration`, a folder of pictures or `.npy` inputs"


@rule("model.compile", "model.source", "model.precision")
def _eager_has_source(spec: Spec) -> Conflicts:
    """`eager` runs the model's own code in the worker, which only a Python file has."""
    model = spec.model
    if model.compile != "eager" or (model.folder and model.handler != "image"):
        return
    if not model.source.partition(":")[0].endswith(".py"):
        text = f"got `eager`, which runs the source of `./file.py:factory`, but `model.source` is `{model.source}`"
        yield "model.compile", text, "compile: export"
    elif model.precision == "int8":
        text = "got `int8`, but `compile: eager` runs the source, and only an exported program is quantised"
        yield "model.precision", text, "compile: aot, or another `precision`"


@rule("model.cpu_target", "model.precision", "model.compile", "serving.device")
def _target_is_compiled_for(spec: Spec) -> Conflicts:
    model = spec.model
    if model.cpu_target == "native":
        return
    if spec.serving.device != "cpu" or model.compile != "aot":
        given = f"`device: {spec.serving.device}`" if spec.serving.device != "cpu" else f"`compile: {model.compile}`"
        text = f"got `{model.cpu_target}`, but with {given} nothing is compiled for a CPU target"
        yield "model.cpu_target", text, "delete `cpu_target`"
    elif model.cpu_target == "x86-64-v3" and model.precision == "bf16" and not model.writes:
        text = "got `x86-64-v3`, but bf16 needs AVX-512"
        yield "model.cpu_target", text, "cpu_target: x86-64-v4, or another `precision`"
