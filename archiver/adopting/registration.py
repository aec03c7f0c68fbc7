"""How TorchServe was told to run an archive: in the archive's own model-config.yaml, in config.properties, and, where
neither says it, at registration, which left no trace."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.archiver.adopting.foreign import ForeignArchive
from marina.config.errors import InputError
from marina.config.lint import load_properties

# Of TorchServe; any model-config.yaml sets the timeouts to it.
_TIMEOUT_S, _DELAY_MS = 120, 100
# Keys of config.properties that Marina has no place for, and what takes their part.
_ELSEWHERE = {
    "cors_allowed_origin": "answer CORS at the gateway",
    "cpu_launcher_enable": "`serving.threads` gives each worker its cores",
    "install_py_dep_per_model": "libraries are installed when the archive is packaged",
    "ipex_enable": "call it in the handler",
    "keystore": "end TLS at the gateway",
    "plugins_path": "plugins of TorchServe's frontend do not run",
    "private_key_file": "end TLS at the gateway",
}


@dataclass(frozen=True)
class Properties:
    """A config.properties of TorchServe, as far as it is about one model."""

    values: Mapping[str, str]
    file: Path | None = None

    @classmethod
    def read(cls, file: Path | None) -> "Properties":
        """The properties of a file; none without one."""
        return cls(load_properties(file), file) if file else cls({})

    def text(self, key: str) -> str | None:
        return self.values.get(key, "").strip() or None

    def flag(self, key: str) -> bool | None:
        """Whether it is `true`, as TorchServe reads it; None if it is not set."""
        value = self.text(key)
        return None if value is None else value.lower() == "true"

    def number(self, key: str) -> int | None:
        """Its whole number; None if it is not set, or none."""
        value = self.text(key)
        return int(value) if value and value.isdecimal() and int(value) else None

    def of_model(self, name: str, version: str) -> Mapping[str, Any]:
        """What `models` or `model_snapshot` says about a model."""
        for key in ("model_snapshot", "models"):
            if (text := self.text(key)) is None:
                continue
            try:
                # TorchServe takes single quotes for double ones.
                found = json.loads(text if '"' in text else text.replace("'", '"'))
                models = found.get("models", found) if key == "model_snapshot" else found
                versions = models.get(name, {})
                given: Any = versions.get(version) or next(iter(versions.values()), {})
            except (ValueError, AttributeError) as err:
                text = f"{self.file}: `{key}`: not a mapping in JSON: {err}"
                raise InputError(text, hint=f"marina check --properties {self.file}") from err
            if isinstance(given, dict) and given:
                return given
        return {}

    def stores(self, file: str) -> bool:
        """Whether the server that had these properties loaded an archive of its model store."""
        named = self.text("load_models") or "all"
        return named in ("all", "ALL") or file in (part.rpartition("=")[2].strip() for part in named.split(","))

    def left_out(self) -> list[str]:
        """A sentence for each setting that has no place in a spec."""
        given = [key for key in _ELSEWHERE if (self.text(key) or "false").lower() != "false"]
        return [f"`{key}` of {self.file} is not taken over: {_ELSEWHERE[key]}" for key in given]


@dataclass(frozen=True)
class Registration:
    """The settings of an archive for a spec; None where nothing said it."""

    workers: int | None
    max_batch: int | None
    max_batch_delay_ms: int | None
    queue: int | None
    response_timeout_s: int
    startup_timeout_s: int
    gpu: bool
    max_request_mb: float | None
    max_response_bytes: int | None


def find_registration(foreign: ForeignArchive, properties: Properties) -> Registration:
    """The settings, each from where TorchServe took it."""
    config, given = foreign.config, properties.of_model(foreign.name, foreign.version)

    def number(key: str, default: int | None = None) -> int | None:
        found = next((part[key] for part in (config, given) if isinstance(part.get(key), int)), 0)
        return found or default

    low, high = number("minWorkers"), number("maxWorkers")
    # A model-config.yaml sets both timeouts, whatever the properties say.
    has_file = "configFile" in foreign.model
    timeouts = {
        key: number(key, _TIMEOUT_S if has_file else properties.number(f"default_{default}") or _TIMEOUT_S)
        for key, default in (("responseTimeout", "response_timeout"), ("startupTimeout", "startup_timeout"))
    }
    batch = number("batchSize")
    size = properties.number("max_request_size")
    return Registration(
        workers=low if low and high and high >= low else properties.number("default_workers_per_model"),
        max_batch=batch,
        max_batch_delay_ms=number("maxBatchDelay", _DELAY_MS) if batch and batch > 1 else None,
        queue=number("jobQueueSize") or properties.number("job_queue_size"),
        response_timeout_s=timeouts["responseTimeout"] or _TIMEOUT_S,
        startup_timeout_s=timeouts["startupTimeout"] or _TIMEOUT_S,
        gpu=str(config.get("deviceType", "")).lower() == "gpu",
        max_request_mb=size / 1_000_000 if size else None,
        max_response_bytes=properties.number("max_response_size"),
    )
