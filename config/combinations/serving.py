"""Rules about workers, batches, timeouts and the objective."""

import math

from marina.config.combinations.rule import Conflicts, rule
from marina.config.quantity import quantity
from marina.config.spec import Spec


@rule("serving.max_batch", "model.batch_sizes")
def _batch_is_compiled(spec: Spec) -> Conflicts:
    largest = max(spec.model.batch_sizes)
    if not (spec.model.writes or spec.model.adopted) and spec.max_batch > largest:
        text = f"got {spec.max_batch}, but the largest of `model.batch_sizes` is {largest}"
        yield "serving.max_batch", text, f"add {spec.max_batch} to `model.batch_sizes`, or use `max_batch: {largest}`"


@rule("serving.queue", "serving.max_batch", "model.batch_sizes", "model.handler")
def _queue_holds_a_batch(spec: Spec) -> Conflicts:
    if spec.queue < spec.max_batch:
        yield "serving.queue", f"got {spec.queue}, but a batch of {spec.max_batch} must fit in it", None


@rule("serving.workers", "serving.threads", "serving.device", "kubernetes.resources")
def _threads_fit_cpu(spec: Spec) -> Conflicts:
    wanted = spec.workers * spec.threads
    if wanted > max(1, spec.cores):
        text = (
            f"got {spec.workers} workers × {spec.threads} threads = {wanted}, "
            f"but `kubernetes.resources.cpu` is {spec.cores:g}"
        )
        yield "serving.workers", text, f'use fewer, or `cpu: "{wanted}"`'


@rule("serving.device", "serving.workers", "kubernetes.resources", "text")
def _gpus_fit_device(spec: Spec) -> Conflicts:
    gpus = spec.kubernetes.resources.gpu
    if spec.serving.device == "cuda" and gpus == 0:
        yield "kubernetes.resources.gpu", "got 0, but `serving.device` is `cuda`", "gpu: 1"
    elif spec.serving.device == "cpu" and gpus > 0:
        yield "kubernetes.resources.gpu", f"got {gpus}, but `serving.device` is `cpu`", "gpu: 0, or `device: cuda`"
    elif gpus and spec.vllm is not None:
        if gpus != spec.vllm.gpus:
            text = (
                f"got {gpus}, but `text.vllm.args` ask for {spec.vllm.gpus}, which is `tensor_parallel_size` × "
                "`pipeline_parallel_size`"
            )
            yield "kubernetes.resources.gpu", text, f"gpu: {spec.vllm.gpus}, or another `tensor_parallel_size`"
    elif gpus and spec.workers % gpus:
        text = f"got {gpus}, but `serving.workers` is {spec.workers}: workers must be a multiple of GPUs"
        yield "kubernetes.resources.gpu", text, None


@rule("kubernetes.resources", "serving", "model.batch_sizes", "model.handler", "model.image")
def _heap_fits_memory(spec: Spec) -> Conflicts:
    if spec.kubernetes.resources.memory == "auto":
        return
    memory_mb = quantity(spec.kubernetes.resources.memory) / 1e6
    if spec.serving.java_heap_mb * 1.048576 > memory_mb / 2:
        text = (
            f"got {spec.serving.java_heap_mb}, but `kubernetes.resources.memory` is "
            f"{spec.kubernetes.resources.memory}, and at least half of it must be left for the workers"
        )
        yield "serving.java_heap_mb", text, None
        return
    left_mb = memory_mb - spec.serving.java_heap_mb - spec.cache_bytes / 1e6
    if (worst_mb := spec.workers * spec.largest_batch_bytes / 1e6) > left_mb:
        others, less = (
            ("Java, models and cached answers", "`cache.mb`, ") if spec.serving.cache else ("Java and models", "")
        )
        workers = "1 worker" if spec.workers == 1 else f"{spec.workers} workers"
        text = f"the largest allowed batches take {worst_mb:.0f} MB on {workers}, on top of {others}"
        yield "kubernetes.resources.memory", text, f"less {less}`max_request_mb` or `max_batch`, or `memory: auto`"


@rule("serving.max_request_mb", "serving.java_heap_mb")
def _heap_holds_the_largest(spec: Spec) -> Conflicts:
    got, share_mb = spec.serving.max_request_mb, spec.max_response_bytes / 1e6
    # Java holds copies of several bodies at once; larger ones may end it, and with it the server.
    if got > share_mb:
        text = f"got {got:g}, allowed: at most a sixth of `serving.java_heap_mb`, {share_mb:.0f} MB"
        yield "serving.max_request_mb", text, f"java_heap_mb: {math.ceil(6 * got / 1.048576)}"


@rule("slo.p99_ms", "serving.response_timeout_s")
def _slo_below_timeout(spec: Spec) -> Conflicts:
    # Not for language models: their workers return text in pieces, each well within the timeout.
    if spec.slo and not spec.model.writes and spec.slo.p99_ms > spec.serving.response_timeout_s * 1000:
        text = f"got {spec.slo.p99_ms:g}, but workers are killed after {spec.serving.response_timeout_s} s"
        yield "slo.p99_ms", text, "raise `serving.response_timeout_s`, or lower `slo.p99_ms`"


@rule("slo.p99_ms", "serving.max_batch_delay_ms", "serving.max_batch", "model.batch_sizes")
def _slo_above_batch_delay(spec: Spec) -> Conflicts:
    if spec.slo and spec.max_batch > 1 and spec.slo.p99_ms <= spec.serving.max_batch_delay_ms:
        text = f"got {spec.slo.p99_ms:g}, but a single request waits {spec.serving.max_batch_delay_ms} ms for its batch"
        yield "slo.p99_ms", text, "lower `serving.max_batch_delay_ms`"
