"""Settings of `config.properties` that TorchServe 0.12.0 accepts but that have surprising effects, as a table."""

from dataclasses import dataclass

from marina.config.lint.finding import Level


@dataclass(frozen=True)
class Trap:
    """A finding about `key` if its value matches `when`, or if it is not set and `when` is None, unless the value of
    another key matches `unless`.

    Both are regular expressions for the whole value, ignoring case. `{value}` in a hint stands for the given value."""

    rule: str
    key: str
    when: str | None
    text: str
    hint: str
    unless_key: str = ""
    unless: str = ".+"
    level: Level = "warning"


_CONTEXT_SELECTOR = "-Dlog4j2.contextSelector=org.apache.logging.log4j.core.async.AsyncLoggerContextSelector"
_OWN_URLS = "allowed_urls=file:///home/model-server/model-store/.*"
_NO_TOKENS = "disable_token_authorization=true, and let the gateway and a NetworkPolicy guard the ports"
_TOKENS = "every call needs a token, even `/ping`, so probes get 400, and each replica has tokens of its own"


def _without(key: str, other: str) -> Trap:
    text = f"has no effect without `{other}`"
    return Trap("no-effect", key, ".+", text, f"set `{other}` too, or delete the line", other, level="error")


def _reset(key: str, real: str) -> Trap:
    text = f"any model-config.yaml resets it to 120 seconds, unless it sets `{real}` itself"
    return Trap("yaml-resets", key, ".+", text, f"{real}: {{value}} in each model-config.yaml")


def _needs_pem(key: str) -> Trap:
    text = f"gRPC needs `{key}` for it, a keystore is not read"
    return Trap("tls-files", "enable_grpc_ssl", "true", text, f"{key}=<PEM file>", key, level="error")


TRAPS = (
    Trap(
        "async-logging",
        "async_logging",
        "true",
        "has no effect in TorchServe 0.12.0, which creates its loggers before it reads the file",
        f"delete the line and add `{_CONTEXT_SELECTOR}` to `vmargs`",
        level="error",
    ),
    Trap("token-auth", "disable_token_authorization", "false", _TOKENS, _NO_TOKENS),
    Trap(
        "metrics-mode",
        "metrics_mode",
        "log",
        "`/metrics` answers with an empty page, the numbers go to log files",
        "metrics_mode=prometheus",
        "enable_metrics_api",
        "false",
    ),
    Trap(
        "metrics-mode",
        "metrics_mode",
        "legacy",
        "`/metrics` shows the three `ts_` counters only, the rest goes to log files",
        "metrics_mode=prometheus",
    ),
    Trap(
        "load-all",
        "load_models",
        "all",
        "loads everything in the model store, including folders and `.tar.gz` files",
        "load_models=<name>.mar",
    ),
    Trap(
        "models-json",
        "models",
        ".+",
        "configures models but loads none, and `load_models` is not set",
        "load_models=<name>.mar, or --models on the command line",
        "load_models",
    ),
    _reset("default_response_timeout", "responseTimeout"),
    _reset("default_startup_timeout", "startupTimeout"),
    Trap(
        "default-workers",
        "default_workers_per_model",
        "0+",
        "0 means one worker for each GPU, or for each processor if there is none",
        "minWorkers: 1 and maxWorkers: 1 in each model-config.yaml",
    ),
    Trap(
        "default-handler",
        "default_service_handler",
        ".+",
        "serves every archive that names no handler, so packaging mistakes go unnoticed",
        "torch-model-archiver --handler {value}",
    ),
    Trap(
        "install-deps",
        "install_py_dep_per_model",
        "true",
        "runs pip for each model at registration: it needs the internet, may replace torch and runs setup code",
        "install_py_dep_per_model=false, and install the packages in the image",
    ),
    Trap(
        "model-api",
        "enable_model_api",
        "true",
        "anyone who can reach the management port may load a model, which is code",
        "enable_model_api=false",
    ),
    Trap(
        "debug-mode",
        "debug",
        "true",
        "no worker process is started and no timeout applies: TorchServe waits for a worker that is started by hand",
        "debug=false",
    ),
    Trap(
        "env-switch",
        "use_env_allowed_urls",
        "true",
        "has no effect without `enable_envvars_config=true`",
        "enable_envvars_config=true",
        "enable_envvars_config",
        "true",
        level="error",
    ),
    Trap(
        "service-envelope",
        "service_envelope",
        "kserve|kservev2",
        "reads only the first request of a batch, and applies to all models",
        "batchSize: 1 in each model-config.yaml",
    ),
    Trap(
        "keystore-password",
        "keystore_pass",
        r"(?!\$\$).+",
        "the password is in the file as plain text",
        "keystore_pass=$$KEYSTORE_PASS$$, and put it in that environment variable",
    ),
    _needs_pem("certificate_file"),
    _needs_pem("private_key_file"),
    _without("cors_allowed_methods", "cors_allowed_origin"),
    _without("cors_allowed_headers", "cors_allowed_origin"),
    _without("certificate_file", "private_key_file"),
    _without("private_key_file", "certificate_file"),
    Trap(
        "no-effect",
        "cpu_launcher_args",
        ".+",
        "has no effect without `cpu_launcher_enable=true`",
        "cpu_launcher_enable=true, or delete the line",
        "cpu_launcher_enable",
        "true",
        level="error",
    ),
    Trap(
        "launcher-wins",
        "python",
        ".+",
        "the torchserve launcher passes its own interpreter, which wins",
        "start torchserve with that interpreter: {value} -m ts.model_server",
    ),
    Trap(
        "snapshot",
        "model_snapshot",
        ".+",
        "restores the models and workers of an earlier run, and `load_models` is ignored",
        "delete the line, and start TorchServe with --ncs",
    ),
    Trap(
        "metrics-mode",
        "metrics_mode",
        None,
        "not set, so it is `log` and `/metrics` answers with an empty page",
        "metrics_mode=prometheus",
        "enable_metrics_api",
        "false",
    ),
    Trap("allowed-urls", "allowed_urls", None, "not set, so models may be loaded from any URL", _OWN_URLS),
    Trap("token-auth", "disable_token_authorization", None, f"not set, so {_TOKENS}", _NO_TOKENS),
    Trap(
        "model-store",
        "model_store",
        None,
        "not set, so TorchServe stops at its start unless the command line names it",
        "model_store=<folder>",
    ),
)
