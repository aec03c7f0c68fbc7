"""The keys of `config.properties` and `model-config.yaml` that TorchServe 0.12.0 reads, and keys that only articles
mention.

The names are string constants of ConfigManager and ModelConfig in model-server.jar; a test compares them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["address", "bool", "float", "host", "int", "json", "list", "long", "map", "regex", "text"]

PROPERTIES_FILE = "config.properties"
MODEL_FILE = "model-config.yaml"


@dataclass(frozen=True)
class Key:
    """One setting: its type, its default as TorchServe would write it, and the values that TorchServe accepts."""

    name: str
    kind: Kind
    default: str = ""
    note: str = ""
    """The unit of a number; for other types, what the value is."""
    low: int | None = None
    high: int | None = None
    below: str = ""
    """What TorchServe takes instead of a number below `low`; empty: it fails."""
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Invented:
    """A key that TorchServe does not have, and what to type instead; `{value}` stands for the given value."""

    real: str
    """The setting that was meant; empty: TorchServe has nothing like it."""
    file: str
    write: str


def _table(keys: Iterable[Key]) -> dict[str, Key]:
    return {key.name: key for key in keys}


def _grpc(side: str, port: str) -> tuple[Key, ...]:
    return (
        Key(f"grpc_{side}_address", "host", "127.0.0.1"),
        Key(f"grpc_{side}_port", "int", port, "port", low=0, high=65535),
        Key(f"grpc_{side}_max_connection_age_ms", "long", "9223372036854775807", "ms", low=1),
        Key(f"grpc_{side}_max_connection_age_grace_ms", "long", "9223372036854775807", "ms", low=0),
    )


PROPERTIES = _table(
    [
        Key("inference_address", "address", "http://127.0.0.1:8080"),
        Key("management_address", "address", "http://127.0.0.1:8081"),
        Key("metrics_address", "address", "http://127.0.0.1:8082"),
        *_grpc("inference", "7070"),
        *_grpc("management", "7071"),
        Key("enable_grpc_ssl", "bool", "false"),
        Key("keystore", "text", note="file"),
        Key("keystore_pass", "text", "changeit"),
        Key("keystore_type", "text", "PKCS12"),
        Key("certificate_file", "text", note="PEM file"),
        Key("private_key_file", "text", note="PEM file"),
        Key("model_store", "text", note="folder"),
        Key("workflow_store", "text", "model_store", "folder"),
        Key("load_models", "text", note="`all` or archives"),
        Key("models", "json", note="settings by model and version"),
        Key("model_snapshot", "text", note="written by TorchServe"),
        Key("version", "text", note="written by TorchServe"),
        Key("default_workers_per_model", "int", "0", "workers", low=0),
        Key("default_response_timeout", "int", "120", "seconds", low=1),
        Key("default_startup_timeout", "int", "120", "seconds", low=1),
        Key("unregister_model_timeout", "int", "120", "seconds", low=1),
        Key("job_queue_size", "int", "100", "requests", low=1),
        Key("number_of_netty_threads", "int", "0", "threads", low=0),
        Key("netty_client_threads", "int", "0", "threads", low=0),
        Key("number_of_gpu", "int", note="GPUs", low=0),
        Key("max_request_size", "int", "6553500", "bytes", low=1),
        Key("max_response_size", "int", "6553500", "bytes", low=1),
        Key("limit_max_image_pixels", "bool", "true"),
        Key("decode_input_request", "bool", "true"),
        Key("default_service_handler", "text"),
        Key("service_envelope", "text", allowed=("base", "body", "json", "kserve", "kservev2")),
        Key("install_py_dep_per_model", "bool", "false"),
        Key("metrics_config", "text", "ts/configs/metrics.yaml", "file"),
        Key("metrics_mode", "text", "log", allowed=("legacy", "log", "prometheus")),
        Key("enable_metrics_api", "bool", "true"),
        Key("model_metrics_auto_detect", "bool", "false"),
        Key("disable_system_metrics", "bool", "false"),
        Key("metric_time_interval", "int", "60", "seconds", low=1),
        Key("system_metrics_cmd", "text", "ts/metrics/metric_collector.py"),
        Key("disable_token_authorization", "bool", "false"),
        Key("token_expiration_min", "float", "60.0", "minutes"),
        Key("enable_model_api", "bool", "false"),
        Key("allowed_urls", "list", "file://.*|http(s)?://.*", "regular expressions"),
        Key("use_env_allowed_urls", "bool", "false"),
        Key("enable_envvars_config", "bool", "false"),
        Key("blacklist_env_vars", "regex"),
        Key("cors_allowed_origin", "text"),
        Key("cors_allowed_methods", "text"),
        Key("cors_allowed_headers", "text"),
        Key("ts_open_inference_protocol", "bool", "false"),
        Key("ts_header_key_sequence_id", "text", "ts_request_sequence_id", "header"),
        Key("ts_header_key_sequence_start", "text", "ts_request_sequence_start", "header"),
        Key("ts_header_key_sequence_end", "text", "ts_request_sequence_end", "header"),
        Key("ipex_enable", "bool", "false"),
        Key("ipex_gpu_enable", "bool", "false"),
        Key("cpu_launcher_enable", "bool", "false"),
        Key("cpu_launcher_args", "text"),
        Key("cpp_log_config", "text", note="file"),
        Key("initial_worker_port", "int", "9000", "port", low=0),
        Key("initial_distribution_port", "int", "29500", "port", low=0, high=65535),
        Key("async_logging", "bool", "false"),
        Key("prefer_direct_buffer", "bool", "false"),
        Key("use_native_io", "bool", "true"),
        Key("io_ratio", "int", "50", "percent", low=1, high=100),
        Key("model_server_home", "text", note="folder"),
        Key("debug", "bool", "false"),
        Key("python", "text", "python", "interpreter"),
        Key("plugins_path", "text", note="folder"),
        Key("vmargs", "text", note="arguments of java"),
    ]
)

# Keys that ts/model_server.py reads too, by a loop over lines; of these, Java itself reads only `model_store`.
LAUNCHER_KEYS = ("model_store", "plugins_path", "vmargs")

MODEL_CONFIG = _table(
    [
        Key("minWorkers", "int", "0", "workers", low=1, below="1"),
        Key("maxWorkers", "int", "0", "workers", low=0, below="none"),
        Key("batchSize", "int", "1", "requests", low=1, below="1"),
        Key("maxBatchDelay", "int", "100", "ms", low=0, below="100"),
        Key("responseTimeout", "int", "120", "seconds", low=1, below="120"),
        Key("startupTimeout", "int", "120", "seconds", low=1, below="120"),
        Key("deviceType", "text", allowed=("cpu", "gpu")),
        Key("deviceIds", "list", note="whole numbers"),
        Key("parallelType", "text", allowed=("custom", "pp", "pptp", "tp")),
        Key("parallelLevel", "int", "0", "GPUs", low=0, below="0"),
        Key("torchrun", "map", note="options of torchrun"),
        Key("maxRetryTimeoutInSec", "int", "300", "seconds", low=0, below="0"),
        Key("clientTimeoutInMills", "int", "0", "ms", low=0, below="0"),
        Key("jobQueueSize", "int", "100", "requests", low=1, below="`job_queue_size` of config.properties"),
        Key("useJobTicket", "bool", "false"),
        Key("continuousBatching", "bool", "false"),
        Key("sequenceBatching", "bool", "false"),
        Key("sequenceMaxIdleMSec", "int", "0", "ms", low=0, below="0"),
        Key("sequenceTimeoutMSec", "int", "0", "ms", low=0, below="0"),
        Key("maxSequenceJobQueueSize", "int", "1", "requests", low=1, below="1"),
        Key("maxNumSequence", "int", "1", "sequences", low=1, below="1"),
        Key("asyncCommunication", "bool", "false"),
        Key("useVenv", "bool", "false"),
    ]
)

TORCHRUN = _table(
    [
        Key("nnodes", "int", "1", "nodes", low=1, below="1"),
        Key("nproc-per-node", "int", "1", "processes", low=1, below="1"),
        Key("rdzv-backend", "text", "c10d"),
        Key("rdzv-endpoint", "text"),
        Key("rdzv-conf", "text"),
        Key("monitor-interval", "int", "5", "seconds", low=1, below="5"),
        Key("node-rank", "int", "0", "rank", low=0, below="0"),
        Key("OMP_NUMBER_THREADS", "int", "1", "threads", low=1, below="1"),
    ]
)

# Sections of model-config.yaml that TorchServe's Python code or its handlers read.
HANDLER_SECTIONS = frozenset({"dali", "deepspeed", "handler", "micro_batching", "pippy", "pt2"})

# The settings that TorchServe reads from `models` in config.properties, and those that only its snapshots write there.
MODELS_JSON = ("batchSize", "maxBatchDelay", "maxWorkers", "minWorkers", "responseTimeout", "startupTimeout")
MODELS_JSON_RUNTIMES = ("LSP", "python", "python3")
MODELS_JSON_OF_SNAPSHOTS = ("defaultVersion", "marName", "parallelLevel")


def _yaml(real: str, *names: str, write: str = "") -> dict[str, Invented]:
    return dict.fromkeys(names, Invented(real, MODEL_FILE, write or real + ": {value}"))


def _properties(real: str, *names: str, write: str = "") -> dict[str, Invented]:
    return dict.fromkeys(names, Invented(real, PROPERTIES_FILE, write or real + "={value}"))


def _nowhere(*names: str) -> dict[str, Invented]:
    return dict.fromkeys(names, Invented("", "", ""))


INVENTED_PROPERTIES = {
    **_yaml("batchSize", "batch_size", "default_batch_size", "max_batch_size"),
    **_yaml("batchSize", "dynamic_batching", "enable_batching", "enable_dynamic_batching", write="batchSize: 8"),
    **_yaml("maxBatchDelay", "batch_delay", "batch_timeout", "default_max_batch_delay"),
    **_yaml("maxBatchDelay", "max_batch_delay", "max_batch_delay_ms"),
    **_yaml("minWorkers", "initial_workers", "min_workers"),
    **_yaml("minWorkers", "NUM_WORKERS", "num_workers", "workers", write="minWorkers: {value} and maxWorkers: {value}"),
    **_yaml("maxWorkers", "max_workers"),
    **_yaml("responseTimeout", "response_timeout", "worker_timeout"),
    **_yaml("startupTimeout", "startup_timeout"),
    **_yaml("deviceType", "device", "device_type", write="deviceType: gpu"),
    **_properties("enable_metrics_api", "enable_metrics"),
    **_properties("metrics_mode", "enable_prometheus", "metrics_format", write="metrics_mode=prometheus"),
    **_properties("inference_address", "inference_port", write="inference_address=http://127.0.0.1:{value}"),
    **_properties("management_address", "management_port", write="management_address=http://127.0.0.1:{value}"),
    **_properties("metrics_address", "metrics_port", write="metrics_address=http://127.0.0.1:{value}"),
    **_properties("job_queue_size", "max_queue_size", "queue_size"),
    **_properties("load_models", "load_model", write="load_models={value}.mar"),
    **_nowhere("log_level", "max_request_per_worker", "max_requests_per_worker"),
    **_nowhere("priority", "priority_queue", "priority_queue_size"),
}

INVENTED_MODEL_CONFIG = {
    **_yaml("clientTimeoutInMills", "clientTimeout", "clientTimeoutInMs", write="responseTimeout: 30"),
    **_yaml("deviceIds", "gpuId", "gpuIds", write="deviceIds: [0]"),
    **_yaml("deviceType", "device", write="deviceType: gpu"),
    **_yaml("maxBatchDelay", "batchDelay", "maxBatchDelayMs", "max_batch_delay_ms"),
    **_yaml("maxRetryTimeoutInSec", "maxRetryTimeout", "maxRetryTimeoutInMin"),
    **_yaml("minWorkers", "numWorkers", "num_workers", "workers", write="minWorkers: {value} and maxWorkers: {value}"),
    **_yaml("jobQueueSize", "queueSize", "queue_size"),
    **_yaml("useJobTicket", "jobTicket"),
    "runtimeType": Invented("--runtime", "torch-model-archiver", "torch-model-archiver --runtime {value}"),
}


def environment_names() -> dict[str, str]:
    """The environment variables that override keys, with `enable_envvars_config=true` in the file, and those keys."""
    names = {(key if key.startswith("ts_") else f"ts_{key}").upper(): key for key in PROPERTIES.keys() - _NOT_SETTABLE}
    del names["TS_TOKEN_EXPIRATION_MIN"]
    return names | {"TS_TOKEN_EXPIRATION_TIME_MIN": "token_expiration_min"}


_NOT_SETTABLE = {
    *("enable_envvars_config", "use_env_allowed_urls", "io_ratio", "use_native_io", "metric_time_interval", "models"),
    *("model_snapshot", "plugins_path", "python", "system_metrics_cmd", "version", "vmargs"),
}
