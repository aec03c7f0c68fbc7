"""Rules about vLLM: which arguments are allowed, and which are set by other fields of the spec."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from marina.config.combinations.rule import Conflicts, rule
from marina.config.errors import listed, nearest
from marina.config.hf_folder import FolderRefused, read_model_folder
from marina.config.spec import Spec

# The arguments of vLLM 0.32's engine that tune it. All others are refused: they may run code, reach another machine, or
# change which model answers.
ARGUMENTS: dict[str, type] = {
    "async_scheduling": bool,
    "attention_backend": str,
    "block_size": int,
    "cpu_offload_gb": float,
    "disable_cascade_attn": bool,
    "disable_custom_all_reduce": bool,
    "disable_sliding_window": bool,
    "enable_expert_parallel": bool,
    "enable_prefix_caching": bool,
    "enforce_eager": bool,
    "gpu_memory_utilization": float,
    "kv_cache_dtype": str,
    "kv_cache_memory_bytes": int,
    "linear_backend": str,
    "long_prefill_token_threshold": int,
    "max_cudagraph_capture_size": int,
    "max_num_batched_tokens": int,
    "max_parallel_loading_workers": int,
    "moe_backend": str,
    "num_gpu_blocks_override": int,
    "numa_bind": bool,
    "optimization_level": int,
    "performance_mode": str,
    "pipeline_parallel_size": int,
    "quantization": str,
    "safetensors_load_strategy": str,
    "tensor_parallel_size": int,
}
# Arguments that are set by other fields.
_SET_BY = {
    "dtype": "model.precision",
    "max_model_len": "text.context",
    "max_num_seqs": "text.slots",
    "model": "model.source",
    "served_model_name": "name",
    "tokenizer": "model.source",
}
_CODE = ("hf_overrides", "model_class_overrides", "scheduler_cls", "trust_remote_code", "worker_cls")
_NAMES = {bool: "true or false", float: "a number", int: "a whole number from 1", str: "a text"}
# The reading speed of a slow disk or network, and how long vLLM compiles after it has read the weights.
_READ_BYTES_S, _COMPILE_S = 250e6, 60


@rule("text", "model.handler")
def _arguments_are_known(spec: Spec) -> Conflicts:
    if spec.text is None or spec.text.vllm is None:
        return
    if spec.text.engine != "vllm":
        yield "text.vllm", f"given, but `text.engine` is `{spec.text.engine}`", "engine: vllm"
    for given, value in spec.text.vllm.args.items():
        field, name = f"text.vllm.args.{given}", given.removeprefix("--").replace("-", "_")
        if name in _SET_BY:
            yield field, f"not here: `{_SET_BY[name]}` sets it", f"delete it, and set `{_SET_BY[name]}`"
        elif name in _CODE or name.endswith(("_plugin", "_cls")):
            yield field, "not allowed: it runs code that is not in the package", "delete it"
        elif given not in ARGUMENTS:
            close = name if name in ARGUMENTS else nearest(name, ARGUMENTS)
            yield field, f"not allowed; allowed: {listed(ARGUMENTS)}", close and f"{close}: {value}"
        elif not _fits(value, ARGUMENTS[given]):
            yield field, f"got `{value}`, allowed: {_NAMES[ARGUMENTS[given]]}", None


def _fits(value: object, kind: type) -> bool:
    if kind is int:
        return type(value) is int and value >= 1
    return type(value) in (int, float) if kind is float else type(value) is kind


@rule("text", "model.handler", "kubernetes.pod")
def _weights_are_mounted(spec: Spec) -> Conflicts:
    """If the spec mounts volumes, the weights must be in one of them."""
    if spec.vllm is None or spec.vllm.weights is None or not spec.kubernetes.pod.mounts:
        return
    path = PurePosixPath(spec.vllm.weights)
    if not any(path.is_relative_to(mount) for mount in spec.kubernetes.pod.mounts):
        text = f"got `{path}`, but `kubernetes.pod.mounts` has {listed(spec.kubernetes.pod.mounts)}"
        yield "text.vllm.weights", text, f"mounts: {{{path}: VOLUME:ro}}, with that volume under `volumes`"


def vllm_warnings(spec: Spec) -> Iterator[str]:
    """Settings of vLLM that are allowed but look like a mistake."""
    if spec.vllm is None:
        return
    if spec.vllm.weights is not None and not spec.kubernetes.pod.mounts:
        yield f"`text.vllm.weights`: `{spec.vllm.weights}`, but no volume is mounted in a pod: `kubernetes.pod.mounts`"
    if spec.is_elsewhere(spec.model.folder):
        return
    try:
        files = read_model_folder(spec.path(spec.model.folder or "")).files
    except FolderRefused:
        return
    size = sum(file.stat().st_size for file in files)
    needed_s = size / _READ_BYTES_S + _COMPILE_S
    if spec.serving.startup_timeout_s < needed_s:
        yield (
            f"`serving.startup_timeout_s`: {spec.serving.startup_timeout_s:g}, but reading {size / 1e9:.0f} GB at "
            f"{_READ_BYTES_S / 1e6:.0f} MB/s, and a minute to compile, may take {needed_s:.0f} s"
        )
