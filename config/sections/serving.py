"""The section of a spec about how TorchServe runs the model."""

from typing import Annotated, Literal

from pydantic import Field

from marina.config.sections.section import Count, Filled, OrOff, RedisUrl, Seconds, Section


class Cache(Section):
    """A cache of answers, so that the same request is not computed twice."""

    mb: Annotated[float, Field(gt=0, le=65_536)] = 64
    """Memory of each worker for cached answers, MB; when it is full, the least recently used are dropped. Read by the
    workers; lands in the pods' memory."""
    ttl_s: Annotated[float, Field(gt=0, le=2_592_000)] = 300
    """How long an answer stays valid, s. Read by the workers."""
    redis: RedisUrl | None = None
    """A Redis that all workers share, `redis://HOST:PORT/NUMBER`, `rediss://…` with TLS; asked once for each batch, for
    5 ms at most; if it does not answer, everything is computed. Default: none. Its password is in the server's variable
    `MARINA_REDIS_AUTH`, never here: a Secret with that key in `kubernetes.pod.env_from`. Read by the workers; lands in
    the NetworkPolicy."""


class Verify(Section):
    """Who must have signed a package before a pod serves it."""

    keys: Annotated[tuple[Filled, ...], Field(min_length=1, max_length=20)]
    """Files with public keys or certificates in PEM, ECDSA P-256 or Ed25519; a signature by one of them is enough, so
    that an old and a new key can overlap. A certificate counts while it is valid. Lands in the ConfigMap."""
    verdict: bool = True
    """Whether a load test's PASS must be signed, too. Read by the model loader and the supervisor."""


class Serving(Section):
    """How TorchServe runs it."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model runs. Lands in `model-config.yaml` as `deviceType`."""
    workers: Count | Literal["auto"] = "auto"
    """Worker processes; auto: the cores of the cpu limit divided by `threads`, on cuda one for each GPU. Lands in
    `model-config.yaml` as `minWorkers` and `maxWorkers`."""
    threads: Count | Literal["auto"] = "auto"
    """Threads of each worker; auto: the cores of the cpu limit divided by `workers`, 1 if `workers` is auto too. Lands
    in the record; the artifact is compiled for it."""
    max_batch: Count | None = None
    """Most requests that TorchServe may put in one batch; default: the largest of `batch_sizes`. Lands in
    `model-config.yaml` as `batchSize`."""
    max_batch_delay_ms: Count = 2
    """How long the first request of a batch waits for others, ms. Lands in `model-config.yaml` as `maxBatchDelay`."""
    queue: Count | None = None
    """Requests that may wait for a worker, or for a slot of a language model; more are refused at once with 503.
    Default: 200, for a language model as many as `text.slots`, where interactive clients and short prompts go first.
    Lands in `model-config.yaml` as `jobQueueSize`, for a language model in the record and in `batchSize`."""
    response_timeout_s: Count = 30
    """A worker that does not answer a batch in this time is killed, s. Lands in `model-config.yaml`."""
    startup_timeout_s: Count = 300
    """A worker that has not loaded its model in this time is killed, s. Lands in `model-config.yaml`."""
    max_request_mb: Annotated[float, Field(ge=0.001, le=1024)] = 10
    """Largest body of a request, MB of 1,000,000 bytes, at most a sixth of `java_heap_mb`; larger ones get 413. Lands
    in the record of the MAR, and 2.5 times as large, at most 2,147,483,647, in `config.properties` as
    `max_request_size`."""
    cache: Cache | None = None
    """Caches answers, and returns them for the same request; for a language model only those that do not depend on
    chance: `temperature: 0` or a `seed`. Default: every request is computed. Load tests and other measurements do not
    use it."""
    java_heap_mb: Annotated[int, Field(ge=64, le=1_048_576)] = 512
    """Heap of TorchServe's frontend, MB. The bodies and answers of all requests may take a third of it, and one answer
    a sixth: a larger answer becomes a 500, and a large body for which there is no room gets 503. Lands in the Java
    command as `-Xmx`, and in `config.properties` as `max_response_size`."""
    max_worker_memory_mb: Count | None = None
    """A worker that uses more memory is replaced, MB resident; default: no limit. Read by the supervisor."""
    log: Literal["json", "text"] = "text"
    """Format of the log lines. Lands in `log4j2.xml` and the supervisor."""
    access_log: Annotated[Literal["all", "auto", "errors", "off"], OrOff] = "auto"
    """Which requests are logged, one line each; auto: all of them up to 20 requests/s; above that rate only
    errors, at most 20 a second, and a line that counts the rest. Read by the supervisor."""
    drain_propagation_s: Annotated[float, Field(ge=0, le=86_400)] = 5
    """How long a stopping pod goes on serving until load balancers have noticed, s. Read by the supervisor; lands in
    the Deployment's grace period."""
    drain_timeout_s: Seconds = 30
    """How long after that the accepted requests may take to finish, s. Read by the supervisor; lands in the
    Deployment's grace period."""
    verify: Verify | None = None
    """Pods refuse a package that was not signed by `marina sign` with one of these keys. Default: no signature is
    asked for. Read by the model loader and the supervisor; lands in the ConfigMap."""
