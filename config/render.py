"""Renders the three files that TorchServe reads, from the spec alone.

`model-config.yaml` is packed into the MAR. The server writes `config.properties` and `log4j2.xml` when it starts,
because only then the ports and folders are known."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from marina.config.spec import Spec

# Workers inherit Java's environment, except for variables that look like credentials; what the handler of an archive
# needs, nobody knows, so that it gets them all. `.*TOKEN.*` would also match TOKENIZERS_PARALLELISM, hence the longer
# form. No `|` outside the group: TorchServe takes it as one regular expression that must match the whole name.
HIDDEN_ENVIRONMENT = (
    "(AWS_.*|AZURE_.*|GOOGLE_.*|KUBERNETES_.*|OTEL_.*HEADERS"
    "|.*SECRET.*|.*PASSWORD.*|.*CREDENTIAL.*|.*_TOKEN|.*API_?KEY.*)"
)


# Lines that TorchServe's own worker code logs at every start and batch; only these are dropped, not a handler's.
_CHATTER = (
    r"(Backend received inference at|Connection accepted: |Listening on port: |Python runtime: |Torch worker started"
    r"|Successfully loaded .*metrics.yaml|\[PID\]|model_name: |s_name_part0=).*"
)

# Unix sockets in Java's working directory, which only its user can open. Not ports: whoever reaches the management
# interface can run code, and any web page can reach every port of the machine on which it is read. The path is relative
# to /proc/self/cwd, because TorchServe would replace `$$NAME$$` in the directory's name, and because the kernel allows
# no more than 107 characters.
MANAGEMENT, METRICS, _HERE = "management.sock", "metrics.sock", "/proc/self/cwd"

# TorchServe reads bodies up to this many times `max_request_mb`, so that the handler can refuse them with a message.
_FRONTEND_LIMIT_FACTOR = 2.5


@dataclass(frozen=True)
class Ports:
    """The ports of one server, counted from one base."""

    base: int = 8080

    @property
    def inference(self) -> int:
        return self.base

    @property
    def supervisor(self) -> int:
        return self.base + 10

    def all(self) -> dict[str, int]:
        """Every port, by name."""
        return {"inference": self.inference, "supervisor": self.supervisor}


def render_model_config(spec: Spec) -> str:
    """Renders `model-config.yaml`, with every key that TorchServe would otherwise fill with a default of its own."""
    serving = spec.serving
    keys: dict[str, object] = {
        # Equal, because TorchServe never scales between them; both, because it ignores one alone with a warning.
        "minWorkers": spec.workers,
        "maxWorkers": spec.workers,
        "batchSize": spec.max_batch,
        "maxBatchDelay": serving.max_batch_delay_ms,
        # Here, because any model-config.yaml overrides the timeouts in config.properties, even with its defaults.
        "responseTimeout": serving.response_timeout_s,
        "startupTimeout": serving.startup_timeout_s,
        "maxRetryTimeoutInSec": spec.retry_window_s,
        "jobQueueSize": spec.queue,
        "deviceType": "gpu" if serving.device == "cuda" else "cpu",
    }
    if spec.model.writes:
        # TorchServe then calls the handler again and again for the same requests, and each call returns the text that
        # was written since the last; a request that has ended is missing from the next call.
        keys["continuousBatching"] = True
    return yaml.safe_dump(keys, sort_keys=False)


def render_properties(spec: Spec, *, ports: Ports, metrics_config: Path) -> str:
    """Renders `config.properties` for one server."""
    serving, adopted = spec.serving, spec.model.adopted
    netty_threads = max(2, min(4, int(spec.cores)))
    keys = {
        # Not where it listens: the supervisor makes that socket (`server/java/door.py`), also for IPv6.
        "inference_address": f"http://127.0.0.1:{ports.inference}",
        "management_address": f"unix:{_HERE}/{MANAGEMENT}",
        "metrics_address": f"unix:{_HERE}/{METRICS}",
        # Relative to Java's directory; the command line has the absolute path.
        "model_store": "store",
        "load_models": f"{spec.name}.mar",
        "metrics_mode": "prometheus",
        "metrics_config": metrics_config,
        # Marina's handlers count without TorchServe (`handlers/metrics.py`).
        "model_metrics_auto_detect": str(adopted).lower(),
        "disable_system_metrics": "true",
        # TorchServe's tokens break probes and differ between replicas; authentication is the gateway's task.
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        # `enable_model_api` does not stop workflows from being registered; a URL that matches nothing does.
        "allowed_urls": "file:///nothing-may-be-loaded-from-a-url",
        "install_py_dep_per_model": "false",
        "enable_envvars_config": "false",
        "blacklist_env_vars": (spec.model.hidden_env or "") if adopted else HIDDEN_ENVIRONMENT,
        # Marina's handlers decode, so that they also see bodies that are not JSON, and can name the mistake.
        "decode_input_request": str(spec.model.decode_requests).lower(),
        "max_request_size": frontend_limit(round(serving.max_request_mb * 1_000_000), adopted=adopted),
        # TorchServe kills the worker for a larger answer, so the handler's own limit is lower.
        "max_response_size": spec.max_response_bytes + 65_536,
        "job_queue_size": spec.queue,
        "default_workers_per_model": spec.workers,
        "number_of_netty_threads": netty_threads,
        "netty_client_threads": netty_threads,
        "prefer_direct_buffer": "true",
    }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in keys.items())


def frontend_limit(max_request_bytes: int, *, adopted: bool) -> int:
    """The largest body that is read, in bytes. Marina's handlers refuse bodies over their limit with a reason, so that
    only what is far above it is not read. The handler of an archive has no limit of its own."""
    return min(2**31 - 1, round(max_request_bytes * (1 if adopted else _FRONTEND_LIMIT_FACTOR)))


def render_log4j2(spec: Spec) -> str:
    """Renders `log4j2.xml`: only the access log on stdout, which the supervisor reads; warnings and errors on stderr.

    The door in front of TorchServe logs requests (`server/java/marina/CurrentRequest.java`), so TorchServe's own access
    log is off. So is the logger of its HTTP handler, because its messages may contain a request's body."""
    time = "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC}"
    pattern = f"{time} %-5p %c{{1}} %m%n"
    if spec.serving.log == "json":
        # If the pattern did not contain the stack trace, log4j would write it after the line, which is not JSON.
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
    <AsyncLogger name="ACCESS_LOG" level="off" additivity="false"/>
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
    """The value as java.util.Properties must read it: with backslashes doubled, since they start an escape there."""
    return str(value).replace("\\", "\\\\")
