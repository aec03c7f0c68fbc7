"""TorchServe's three files, as pure functions of the spec.

`model-config.yaml` travels in the MAR; `config.properties` and `log4j2.xml` are written by the server at its start,
because only it knows the ports and folders of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from config.spec import Spec

# Workers inherit Java's environment; what smells of credentials stays behind. `.*TOKEN.*` would also take
# TOKENIZERS_PARALLELISM, hence the longer form. No `|` outside the group: it is one regular expression, matched whole.
HIDDEN_ENVIRONMENT = (
    "(AWS_.*|AZURE_.*|GOOGLE_.*|KUBERNETES_.*|.*SECRET.*|.*PASSWORD.*|.*CREDENTIAL.*|.*_TOKEN|.*API_?KEY.*)"
)


# What TorchServe's workers say of themselves at every start and batch; what a handler says is logged.
_CHATTER = (
    r"(Backend received inference at|Connection accepted: |Listening on port: |Python runtime: |Torch worker started"
    r"|Successfully loaded .*metrics.yaml|\[PID\]|model_name: |s_name_part0=).*"
)

# Files in Java's working directory, which only its user can open: whoever reaches management runs code, and a web page
# reaches every port of the machine that it is read on. Named by a path that has none of the directory's characters in
# it, for TorchServe replaces what stands between `$$` in a value, and the kernel takes 107 characters.
MANAGEMENT, METRICS, _HERE = "management.sock", "metrics.sock", "/proc/self/cwd"

# Up to this many times its limit a body is read, so that its sender can be told.
FRONTEND_LIMIT_FACTOR = 2.5


@dataclass(frozen=True)
class Ports:
    """The ports of one server, all from one base; only `inference` and `supervisor` may leave loopback."""

    base: int = 8080

    @property
    def inference(self) -> int:
        return self.base

    @property
    def grpc_inference(self) -> int:
        return self.base + 3

    @property
    def grpc_management(self) -> int:
        return self.base + 4

    @property
    def supervisor(self) -> int:
        return self.base + 10

    def all(self) -> dict[str, int]:
        """Every port by its name."""
        names = ("inference", "grpc_inference", "grpc_management", "supervisor")
        return {name: getattr(self, name) for name in names}


def render_model_config(spec: Spec) -> str:
    """`model-config.yaml`: every key that TorchServe would otherwise fill with a default of its own."""
    serving = spec.serving
    keys: dict[str, object] = {
        # Equal, because TorchServe never scales between them; both, because one alone is dropped with a warning.
        "minWorkers": spec.workers,
        "maxWorkers": spec.workers,
        "batchSize": spec.max_batch,
        "maxBatchDelay": serving.max_batch_delay_ms,
        # Here, because any model-config.yaml resets what config.properties says of timeouts.
        "responseTimeout": serving.response_timeout_s,
        "startupTimeout": serving.startup_timeout_s,
        "maxRetryTimeoutInSec": serving.retry_window_s,
        "jobQueueSize": serving.queue,
        "deviceType": "gpu" if serving.device == "cuda" else "cpu",
    }
    if spec.model.writes:
        # Rounds, each with what was written since the last one; who leaves is named by missing in the next.
        keys["continuousBatching"] = True
    return yaml.safe_dump(keys, sort_keys=False)


def render_properties(spec: Spec, *, ports: Ports, host: str, metrics_config: Path) -> str:
    """`config.properties` for one server: `host` is where inference listens, everything else stays on this machine."""
    serving = spec.serving
    netty_threads = max(2, min(4, int(spec.cores)))
    keys = {
        "inference_address": f"http://{host}:{ports.inference}",
        "management_address": f"unix:{_HERE}/{MANAGEMENT}",
        "metrics_address": f"unix:{_HERE}/{METRICS}",
        "grpc_inference_address": "127.0.0.1",
        "grpc_inference_port": ports.grpc_inference,
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": ports.grpc_management,
        # Relative to Java's directory; the command line says it whole.
        "model_store": "store",
        "load_models": f"{spec.name}.mar",
        "metrics_mode": "prometheus",
        "metrics_config": metrics_config,
        "disable_system_metrics": "true",
        # Tokens break probes and differ between replicas; authentication belongs to the gateway.
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        # Workflows are registered without that switch; a URL that matches nothing closes them.
        "allowed_urls": "file:///nothing-may-be-loaded-from-a-url",
        "install_py_dep_per_model": "false",
        "enable_envvars_config": "false",
        "blacklist_env_vars": HIDDEN_ENVIRONMENT,
        # The handler decodes, so that it also sees what is not JSON and can answer with a name.
        "decode_input_request": "false",
        # The handler refuses what is over the limit and says why; only far above it TorchServe does, without a word.
        "max_request_size": round(serving.max_request_mb * 1_000_000 * FRONTEND_LIMIT_FACTOR),
        # TorchServe kills the worker over a larger answer, so the handler's own limit comes first.
        "max_response_size": round(serving.max_response_mb * 1_000_000) + 65_536,
        "job_queue_size": serving.queue,
        "default_workers_per_model": spec.workers,
        "number_of_netty_threads": netty_threads,
        "netty_client_threads": netty_threads,
        "prefer_direct_buffer": "true",
    }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in keys.items())


def render_log4j2(spec: Spec) -> str:
    """`log4j2.xml`: the access log alone on stdout, for the supervisor; warnings and worse on stderr; nothing twice.

    Requests over HTTP are logged by the door before TorchServe (`server/java/marina/Door.java`), those over gRPC by
    TorchServe. What its HTTP handler says of a request that it cannot take may hold the request, so it says nothing.
    """
    time = "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC}"
    pattern = f"{time} %-5p %c{{1}} %m%n"
    if spec.serving.log == "json":
        # The trace is named, or log4j puts it after the line, which is not JSON.
        trace = '"trace":"%enc{%ex}{JSON}"'
        fields = (f'"time":"{time}"', '"level":"%p"', '"logger":"%c{1}"', '"message":"%enc{%m}{JSON}"', trace)
        pattern = "{" + ",".join(fields) + "}%n"
    pattern = pattern.replace('"', "&quot;")
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN" shutdownHook="disable">
  <Appenders>
    <Console name="access" target="SYSTEM_OUT"><PatternLayout pattern="A %m%n"/></Console>
    <Console name="stderr" target="SYSTEM_ERR"><PatternLayout pattern="{pattern}"/></Console>
  </Appenders>
  <Loggers>
    <AsyncLogger name="marina.access" level="info" additivity="false"><AppenderRef ref="access"/></AsyncLogger>
    <AsyncLogger name="ACCESS_LOG" level="info" additivity="false">
      <AppenderRef ref="access"/>
      <RegexFilter regex="\\S* &quot;gRPC .*" onMatch="NEUTRAL" onMismatch="DENY"/>
    </AsyncLogger>
    <AsyncLogger name="org.pytorch.serve.http.HttpRequestHandler" level="off" additivity="false"/>
    <AsyncLogger name="MODEL_LOG" level="info" additivity="false">
      <AppenderRef ref="stderr"/>
      <RegexFilter regex="{_CHATTER}" onMatch="DENY" onMismatch="NEUTRAL"/>
    </AsyncLogger>
    <AsyncLogger name="MODEL_METRICS" level="off" additivity="false"/>
    <AsyncLogger name="TS_METRICS" level="off" additivity="false"/>
    <AsyncLogger name="org.pytorch.serve" level="warn" additivity="false"><AppenderRef ref="stderr"/></AsyncLogger>
    <AsyncRoot level="warn"><AppenderRef ref="stderr"/></AsyncRoot>
  </Loggers>
</Configuration>
"""


def _escaped(value: object) -> str:
    """A value as java.util.Properties reads it back; a backslash starts an escape there."""
    return str(value).replace("\\", "\\\\")
