"""The keys of `config.properties` and `model-config.yaml` that TorchServe 0.12.0 reads.

The names are string constants of ConfigManager and ModelConfig in model-server.jar; a test compares them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["address", "bool", "float", "int", "json", "list", "long", "map", "text"]

MODEL_FILE = "model-config.yaml"


@dataclass(frozen=True)
class Key:
    """One setting: its type, its default as TorchServe would write it, and the values that TorchServe accepts."""

    name: str
    kind: Kind
    default: str = ""
    note: str = ""
    """The unit of a number."""
    low: int = 0
    high: int | None = None
    allowed: tuple[str, ...] = ()


def _grpc(side: str, port: str) -> tuple[Key, ...]:
    longest = str(2**63 - 1)
    return (
        Key(f"grpc_{side}_port", "int", port, "port", high=65535),
        Key(f"grpc_{side}_max_connection_age_ms", "long", longest, "ms", low=1),
        Key(f"grpc_{side}_max_connection_age_grace_ms", "long", longest, "ms"),
    )


def _table(keys: Iterable[Key], **plain: str) -> dict[str, Key]:
    """The keys by name; `plain` has those of which only the type is known."""
    more = (Key(name, kind) for kind in get_args(Kind) for name in plain.get(kind, "").split())
    return {key.name: key for key in (*keys, *more)}


PROPERTIES = _table(
    [
        Key("inference_address", "address", "http://127.0.0.1:8080"),
        Key("management_address", "address", "http://127.0.0.1:8081"),
        Key("metrics_address", "address", "http://127.0.0.1:8082"),
        *_grpc("inference", "7070"),
        *_grpc("management", "7071"),
        Key("default_workers_per_model", "int", "0", "workers"),
        Key("default_response_timeout", "int", "120", "seconds", low=1),
        Key("default_startup_timeout", "int", "120", "seconds", low=1),
        Key("unregister_model_timeout", "int", "120", "seconds", low=1),
        Key("job_queue_size", "int", "100", "requests", low=1),
        Key("number_of_netty_threads", "int", "0", "threads"),
        Key("netty_client_threads", "int", "0", "threads"),
        Key("number_of_gpu", "int", "0", "GPUs"),
        Key("max_request_size", "int", "6553500", "bytes", low=1),
        Key("max_response_size", "int", "6553500", "bytes", low=1),
        Key("service_envelope", "text", allowed=("base", "body", "json", "kserve", "kservev2")),
        Key("metrics_mode", "text", "prometheus", allowed=("legacy", "log", "prometheus")),
        Key("metric_time_interval", "int", "60", "seconds", low=1),
        Key("token_expiration_min", "float", "60.0", "minutes"),
        Key("initial_worker_port", "int", "9000", "port"),
        Key("initial_distribution_port", "int", "29500", "port", high=65535),
        Key("io_ratio", "int", "50", "percent", low=1, high=100),
    ],
    bool="enable_grpc_ssl limit_max_image_pixels decode_input_request install_py_dep_per_model enable_metrics_api "
    "model_metrics_auto_detect disable_system_metrics disable_token_authorization enable_model_api "
    "use_env_allowed_urls enable_envvars_config ts_open_inference_protocol ipex_enable ipex_gpu_enable "
    "cpu_launcher_enable async_logging prefer_direct_buffer use_native_io debug",
    text="grpc_inference_address grpc_management_address keystore keystore_pass keystore_type certificate_file "
    "private_key_file model_store workflow_store load_models model_snapshot version default_service_handler "
    "metrics_config system_metrics_cmd allowed_urls blacklist_env_vars cors_allowed_origin cors_allowed_methods "
    "cors_allowed_headers ts_header_key_sequence_id ts_header_key_sequence_start ts_header_key_sequence_end "
    "cpu_launcher_args cpp_log_config model_server_home python plugins_path vmargs",
    json="models",
)

# Keys that ts/model_server.py reads too, by a loop over lines; of these, Java itself reads only `model_store`.
LAUNCHER_KEYS = ("model_store", "plugins_path", "vmargs")

MODEL_CONFIG = _table(
    [
        Key("minWorkers", "int", "1", "workers", low=1),
        Key("maxWorkers", "int", "1", "workers"),
        Key("batchSize", "int", "1", "requests", low=1),
        Key("maxBatchDelay", "int", "100", "ms"),
        Key("responseTimeout", "int", "120", "seconds", low=1),
        Key("startupTimeout", "int", "120", "seconds", low=1),
        Key("deviceType", "text", "cpu", allowed=("cpu", "gpu")),
        Key("deviceIds", "list", "[0]"),
        Key("parallelType", "text", "tp", allowed=("custom", "pp", "pptp", "tp")),
        Key("parallelLevel", "int", "1", "GPUs"),
        Key("torchrun", "map", "{nproc-per-node: 2}"),
        Key("maxRetryTimeoutInSec", "int", "300", "seconds"),
        Key("clientTimeoutInMills", "int", "0", "ms"),
        Key("jobQueueSize", "int", "100", "requests", low=1),
        Key("sequenceMaxIdleMSec", "int", "1000", "ms"),
        Key("sequenceTimeoutMSec", "int", "1000", "ms"),
        Key("maxSequenceJobQueueSize", "int", "1", "requests", low=1),
        Key("maxNumSequence", "int", "1", "sequences", low=1),
    ],
    bool="useJobTicket continuousBatching sequenceBatching asyncCommunication useVenv",
)

# Sections of model-config.yaml that TorchServe's Python code or its handlers read.
HANDLER_SECTIONS = frozenset({"dali", "deepspeed", "handler", "micro_batching", "pippy", "pt2"})
