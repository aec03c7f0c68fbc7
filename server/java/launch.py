"""The command that starts TorchServe's Java, as data: its options, its environment, its files.

The `torchserve` script is not used: it exits 0 when Java died, ignores SIGTERM as PID 1, and forwards no signal.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.errors import ToolMissing
from config.machine import end_with_parent
from config.mar import open_mar
from config.record import file_sha256
from config.render import Ports, render_log4j2, render_properties
from config.spec import Spec
from server.java.checks import Java, connection_limit
from server.java.door import Door
from server.system import OWNER_VARIABLE

# The output of a layer is megabytes, which glibc's malloc would map anew for every batch: 5,000 page faults and a
# twelfth of ResNet-50's time. Below these sizes it keeps the memory, in large pages where the system lets it. Its fast
# bins are off: each large request first merges all that lies in them.
_ALLOCATOR = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"mmap_threshold": 1 << 30, "trim_threshold": 1 << 30, "hugetlb": 1, "mxfast": 0}.items()
)
# What is larger is a network whose time the workers need more than Java.
_LARGE_MAR_BYTES = 4_000_000
_JSON = "application/json"
_JAR = Path(__file__).with_name("marina.jar")
# What a worker imports before anything else: its end with Java's.
_WORKERS_START = Path(__file__).parent.parent / "assets" / "sitecustomize.py.txt"


@dataclass(frozen=True)
class Launch:
    """All that is needed to start one TorchServe: nothing of it has happened yet."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folders: tuple[Path, ...]
    files: dict[Path, str]
    mar: Path
    model: Path
    """The folder into which the MAR is unpacked, much faster than by Java, which hashes what it unpacks. It is named as
    the MAR, for TorchServe first looks in its working directory, and no folder there has a dot in its name."""
    directory: Path
    address: str
    port: int

    def start(self, door: Door) -> subprocess.Popen[bytes]:
        """Writes the files, unpacks the MAR and starts Java, which dies with the thread that called this."""
        executable, *options = self.command
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        for file, text in self.files.items():
            file.write_text(text, encoding="utf-8")
        _unpack(self.mar, self.model)
        return subprocess.Popen(
            [executable, f"-Dmarina.listener={door.listener}", *options],
            env=self.environment,
            cwd=self.directory,
            stdin=door.orders,
            pass_fds=(door.listener,),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C goes to a terminal's whole group; only the supervisor may decide when Java stops.
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )


def plan_launch(
    spec: Spec,
    *,
    mar: Path,
    ports: Ports,
    host: str,
    directory: Path,
    java: Java,
    types: Sequence[str] = (_JSON,),
    pages: Mapping[str, Mapping[str, str]] | None = None,
) -> Launch:
    """The launch of one server whose every file lies in `directory`; `types` are the kinds of bodies that its model
    takes, its sample's first; `pages` is what the door answers itself."""
    temporary, store, metrics = directory / "tmp", directory / "store", directory / "metrics"
    properties, logging = directory / "config.properties", directory / "log4j2.xml"
    site = _site_packages()
    return Launch(
        command=_command(spec, java, site, directory, types=types, quick=_compiles_quickly(spec, mar)),
        environment=_environment(spec, directory) | _cache(spec, mar) | _route(spec) | _sessions(spec),
        folders=(temporary, store, metrics, directory / "renew", directory / "first"),
        files={
            properties: render_properties(
                spec, ports=ports, host=host, metrics_config=site / "ts" / "configs" / "metrics.yaml"
            ),
            logging: render_log4j2(spec),
            directory / "pages.json": json.dumps(dict(pages or {})),
            directory / "first" / "sitecustomize.py": _WORKERS_START.read_text(encoding="utf-8"),
        },
        mar=mar,
        model=store / f"{spec.name}.mar",
        directory=directory,
        address=host,
        port=ports.inference,
    )


def _unpack(mar: Path, folder: Path) -> None:
    with open_mar(mar) as archive:
        archive.extractall(folder)


def _compiles_quickly(spec: Spec, mar: Path) -> bool:
    choice = spec.serving.java_compiler
    return mar.stat().st_size > _LARGE_MAR_BYTES if choice == "auto" else choice == "quick"


def _command(
    spec: Spec, java: Java, site: Path, directory: Path, *, types: Sequence[str], quick: bool
) -> tuple[str, ...]:
    heap = spec.serving.java_heap_mb
    options = [
        f"-Xmx{heap}m",
        # Netty keeps bodies outside the heap; its own default would allow as much again without saying so.
        f"-XX:MaxDirectMemorySize={heap}m",
        "-XX:+ExitOnOutOfMemoryError",
        # For a heap of this size the plainest collector takes the least of the cores that the workers need.
        "-XX:+UseSerialGC",
        # One send per batch runs on the common pool; with two cores or fewer it would start a thread each.
        "-Djava.util.concurrent.ForkJoinPool.common.parallelism=4",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dmodel_server_home={site}",
        f"-Dmarina.predictions=/predictions/{spec.name}",
        f"-Dmarina.max_connections={connection_limit(spec.serving.max_connections)}",
        f"-Dmarina.idle_s={spec.serving.idle_timeout_s}",
        f"-Dmarina.types={','.join(types)}",
        f"-Dmarina.pages={directory / 'pages.json'}",
        f"-Dlog4j.configurationFile={(directory / 'log4j2.xml').as_uri()}",
    ]
    if spec.model.writes:
        options.append(f"-Dmarina.texts=/predictions/{spec.name}/{spec.version}")
    if quick:
        # Java's second compiler takes 3 % of two cores for minutes, and a fifth of them at first.
        options.append("-XX:TieredStopAtLevel=1")
    if java.version >= 17:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return (
        str(java.executable),
        *options,
        # No `.` in front, as the script has it: a class in the working directory would be run.
        *("-cp", f"{_JAR}:{site}/ts/frontend/*", "marina.Server"),
        *(
            "--python",
            sys.executable,
            "-f",
            str(directory / "config.properties"),
            "-s",
            str(directory / "store"),
            "-ncs",
        ),
    )


def _environment(spec: Spec, directory: Path) -> dict[str, str]:
    """Java's environment; the workers inherit it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TS_", "PYTHON"))}
    threads = str(spec.threads)
    return environment | {
        OWNER_VARIABLE: str(directory),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "PROMETHEUS_MULTIPROC_DIR": str(directory / "metrics"),
        "MARINA_RENEW_DIR": str(directory / "renew"),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # glibc keeps freed memory in up to eight arenas a core; two hold a worker's memory at what it uses.
        "MALLOC_ARENA_MAX": "2",
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", _ALLOCATOR),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(directory / "first"),
    }


def _cache(spec: Spec, mar: Path) -> dict[str, str]:
    """What `handlers/caching` reads. Answers are kept under the package's hash, which only who has all of it knows."""
    cache = spec.serving.cache
    if cache is None:
        return {}
    settings = {"mb": cache.mb, "ttl_s": cache.ttl_s, "redis": cache.redis, "package": file_sha256(mar)}
    return {"MARINA_ANSWERS": json.dumps(settings)}


def _route(spec: Spec) -> dict[str, str]:
    """What `handlers/generation/routing.py` reads."""
    route = spec.text.route if spec.text else None
    if route is None:
        return {}
    settings = {"url": route.address, "short_tokens": route.short_tokens, "patience_ms": route.patience_ms}
    return {"MARINA_ROUTE": json.dumps(settings)}


def _sessions(spec: Spec) -> dict[str, str]:
    """What `handlers/generation/sessions.py` reads."""
    sessions = spec.text.sessions if spec.text else None
    if sessions is None:
        return {}
    return {"MARINA_SESSIONS": sessions.model_dump_json(include={"redis", "ttl_s", "max_kb"})}


def _site_packages() -> Path:
    """Where `ts` is installed, found without importing it."""
    module_spec = importlib.util.find_spec("ts")
    if module_spec is None or module_spec.origin is None:
        raise ToolMissing("TorchServe is not installed", hint="pip install torchserve")
    return Path(module_spec.origin).parent.parent
