"""The section of a spec about how TorchServe runs the model."""

from typing import Annotated, Literal

from pydantic import Field

from marina.config.sections.section import Count, ObjectName, OrOff, RedisUrl, Seconds, Section


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
    `MARINA_REDIS_AUTH`, never here. Read by the workers; lands in the NetworkPolicy."""
    secret: ObjectName | None = None
    """A Secret whose key `password` is the password of `redis`. Lands in the Deployment as `MARINA_REDIS_AUTH`."""


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
    queue: Count = 200
    """Requests that may wait; more are refused at once with 503. Lands in `model-config.yaml` as `jobQueueSize`."""
    response_timeout_s: Count = 30
    """A worker that does not answer a batch in this time is killed, s. Lands in `model-config.yaml`."""
    startup_timeout_s: Count = 300
    """A worker that has not loaded its model in this time is killed, s. Lands in `model-config.yaml`."""
    retry_window_s: Count = 600
    """How long a worker that keeps failing is restarted before the server gives up, s; at least `startup_timeout_s` +
    60. Lands in `model-config.yaml` as `maxRetryTimeoutInSec`."""
    max_request_mb: Annotated[float, Field(ge=0.001, le=1024)] = 10
    """Largest body of a request, MB of 1,000,000 bytes, at most a sixth of `java_heap_mb`; larger ones get 413. Lands
    in the record of the MAR, and 2.5 times as large, at most 2,147,483,647, in `config.properties` as
    `max_request_size`: above that it is not read, and the 413 does not come from the handler."""
    max_connections: Count = 2048
    """Most connections to the inference port at the same time. When there are more, the one that has been idle longest
    is closed; if none is idle, the new one is answered 503, and beyond half as many more it is closed unanswered. It is
    lowered if the process may not open that many files. Lands in the Java command."""
    idle_timeout_s: Count = 620
    """A connection that is idle for this long is closed, s. Keep it longer than your load balancer's idle timeout, or
    the load balancer may send a request just as the connection is closed. Lands in the Java command."""
    max_response_mb: Annotated[float, Field(ge=0.001, le=1024)] = 10
    """Largest answer, MB, at most a sixth of `java_heap_mb`; a larger one becomes a 500. Lands in `config.properties`
    as `max_response_size`."""
    cache: Cache | None = None
    """Caches answers, and returns them for the same request; for a language model only those that do not depend on
    chance: `temperature: 0` or a `seed`. Default: every request is computed. Load tests and other measurements do not
    use it."""
    java_heap_mb: Annotated[int, Field(ge=64, le=1_048_576)] = 512
    """Heap of TorchServe's frontend, MB. The bodies and answers of all requests may take a third of it; a large body
    for which there is no room gets 503. Lands in the Java command as `-Xmx`."""
    java_compiler: Literal["auto", "quick", "full"] = "auto"
    """How thoroughly Java compiles TorchServe's frontend. full: more requests/s for a tiny model, but compiling takes
    minutes, on the cores that the workers need; auto: quick for a MAR above 4 MB. Lands in the Java command as
    `-XX:TieredStopAtLevel`."""
    max_worker_memory_mb: Count | None = None
    """A worker that uses more memory is replaced, MB resident; default: no limit. Read by the supervisor."""
    log: Literal["json", "text"] = "text"
    """Format of the log lines. Lands in `log4j2.xml` and the supervisor."""
    access_log: Annotated[Literal["all", "auto", "errors", "off"], OrOff] = "auto"
    """Which requests are logged, one line each; auto: all of them up to `access_log_max_rps`; above that rate only
    errors, at most that many a second, and a line that counts the rest. Read by the supervisor."""
    access_log_max_rps: Count = 20
    """The rate above which `access_log: auto` logs errors only, and the most errors that it logs, requests/s. Read by
    the supervisor."""
    drain_propagation_s: Annotated[float, Field(ge=0, le=86_400)] = 5
    """How long a stopping pod goes on serving until load balancers have noticed, s. Read by the supervisor; lands in
    the Deployment's grace period."""
    drain_timeout_s: Seconds = 30
    """How long after that the accepted requests may take to finish, s. Read by the supervisor; lands in the
    Deployment's grace period."""
