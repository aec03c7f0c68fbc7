"""Plans the start of TorchServe's Java as data: its command line, its environment, its files.

The `torchserve` script is not used: it exits with 0 if Java died, ignores SIGTERM as PID 1, and forwards no signals."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from marina.config.handler_metrics import torchserves_file
from marina.config.machine import end_with_parent, torchserve_home
from marina.config.mar import open_mar
from marina.config.render import Ports, render_log4j2, render_properties
from marina.config.requirements import VARIABLE
from marina.config.spec import Spec
from marina.server.java.checks import Java, connection_limit
from marina.server.java.door import Door
from marina.server.system.rundir import OWNER_VARIABLE

# The output of a layer takes megabytes, which glibc's malloc by default maps anew for every batch: 5,000 page faults
# and a twelfth of ResNet-50's time. With these thresholds it keeps the memory, in huge pages if the system allows them.
# Fast bins are off, because every large allocation first merges everything in them.
_ALLOCATOR = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"mmap_threshold": 1 << 30, "trim_threshold": 1 << 30, "hugetlb": 1, "mxfast": 0}.items()
)
# A larger MAR holds a network whose workers need the CPU more than Java's second compiler does.
LARGE_MAR_BYTES = 4_000_000
_JSON = "application/json"
_JAR = Path(__file__).with_name("marina.jar")
# Workers import this before anything else; it makes them end with Java.
_SITECUSTOMIZE = Path(__file__).parent.parent / "assets" / "sitecustomize.py.txt"


@dataclass(frozen=True)
class Launch:
    """Everything needed to start one TorchServe. Nothing happens before `start`."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folders: tuple[Path, ...]
    files: dict[Path, str]
    mar: Path
    model: Path
    """The folder into which the MAR is unpacked. We unpack it ourselves, because Java also hashes it and is much
    slower. The folder is named like a MAR: TorchServe looks in its working directory first, where no folder has a dot
    in its name."""
    directory: Path
    address: str
    ports: Ports
    sha256: str

    def start(self, door: Door) -> subprocess.Popen[bytes]:
        """Writes the files, unpacks the MAR and starts Java. Java dies with the thread that calls this."""
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
            # Ctrl-C goes to the terminal's whole process group, but only the supervisor may decide when Java stops.
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
    sha256: str = "",
    requirements: Path | None = None,
    types: Sequence[str] = (_JSON,),
    pages: Mapping[str, Mapping[str, Any]] | None = None,
    metrics: str | None = None,
) -> Launch:
    """Plans the launch of one server, with all its files in `directory`. `sha256` is the MAR's, of which the
    keys of cached answers are made; `requirements` is the folder of the handler's libraries; `types` are the content
    types that the model accepts, with the sample's first; `pages` are those that the door answers itself
    (`marina.server.pages.door_pages`); `metrics` declares metrics instead of TorchServe's own file."""
    temporary, store, counts = directory / "tmp", directory / "store", directory / "metrics"
    properties, logging = directory / "config.properties", directory / "log4j2.xml"
    site, model = torchserve_home(), store / f"{spec.name}.mar"
    declared = directory / "metrics.yaml" if metrics is not None else torchserves_file()
    named = {
        path: {name: str(model / value) if name == "file" else value for name, value in page.items()}
        for path, page in (pages or {}).items()
    }
    return Launch(
        command=_command(spec, java, site, directory, types=types, quick=mar.stat().st_size > LARGE_MAR_BYTES),
        environment=_environment(spec, directory)
        | _worker_settings(spec, sha256)
        | ({VARIABLE: str(requirements)} if requirements else {}),
        folders=(temporary, store, counts, directory / "renew", directory / "first"),
        files={
            properties: render_properties(spec, ports=ports, metrics_config=declared),
            logging: render_log4j2(spec),
            directory / "pages.json": json.dumps(named),
            directory / "first" / "sitecustomize.py": _SITECUSTOMIZE.read_text(encoding="utf-8"),
            **({} if metrics is None else {declared: metrics}),
        },
        mar=mar,
        model=model,
        directory=directory,
        address=host,
        ports=ports,
        sha256=sha256,
    )


def jars() -> tuple[Path, ...]:
    """The jars that Java is started with: Marina's, then TorchServe's."""
    return (_JAR, *sorted((torchserve_home() / "ts" / "frontend").glob("*.jar")))


def class_archive(java: Java, jars: Sequence[Path]) -> Path:
    """The archive from which Java loads its classes in this environment, where `make_class_archive.py` puts it. Without
    one it looks for 5,000 of them in its jars at every start, reads them and checks them; that is two fifths of what a
    start costs it. Java refuses an archive of another Java or of other jars, so each has a name of its own."""
    digest = hashlib.sha256()
    for file in (java.executable, *jars):
        state = file.stat() if file.exists() else None
        digest.update(f"{file} {state and (state.st_size, state.st_mtime_ns)}\n".encode())
    return Path(sys.prefix) / "share" / "marina" / f"java-{digest.hexdigest()[:12]}.jsa"


def _unpack(mar: Path, folder: Path) -> None:
    with open_mar(mar) as archive:
        archive.extractall(folder)


def _command(
    spec: Spec, java: Java, site: Path, directory: Path, *, types: Sequence[str], quick: bool
) -> tuple[str, ...]:
    heap = spec.serving.java_heap_mb
    options = [
        f"-Xmx{heap}m",
        # Netty keeps bodies outside the heap, by default up to the heap's size; here that limit is explicit.
        f"-XX:MaxDirectMemorySize={heap}m",
        # Chunks of 1 MB; what is larger is allocated by itself. In netty's chunks of 16 MB, a few large answers could
        # leave no room for one more, which cost a worker its connection.
        "-Dio.netty.allocator.maxOrder=7",
        "-XX:+ExitOnOutOfMemoryError",
        # With a heap of this size, the simplest collector leaves the most CPU to the workers.
        "-XX:+UseSerialGC",
        # TorchServe runs one send per batch on the common pool, which on two cores or fewer would start a thread for
        # each.
        "-Djava.util.concurrent.ForkJoinPool.common.parallelism=4",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dmodel_server_home={site}",
        f"-Dmarina.predictions=/predictions/{spec.url_name}",
        f"-Dmarina.max_connections={connection_limit()}",
        f"-Dmarina.types={','.join(types)}",
        f"-Dmarina.pages={directory / 'pages.json'}",
        f"-Dlog4j.configurationFile={(directory / 'log4j2.xml').as_uri()}",
    ]
    if spec.model.writes:
        options.append(f"-Dmarina.texts=/predictions/{spec.url_name}/{spec.url_version}")
    if spec.model.adopted:
        options.append("-Dmarina.adopted=true")
    if spec.tracing:
        options.append(f"-Dmarina.trace={spec.tracing.sample}")
    if quick:
        # Without its second compiler: that takes a fifth of two cores at first, and 3 % for minutes.
        options.append("-XX:TieredStopAtLevel=1")
    if (archive := class_archive(java, jars())).exists():
        options.append(f"-XX:SharedArchiveFile={archive}")
    if java.version >= 17:
        # The report of a crash must not lie in a folder that ends with the server.
        options += ["--enable-native-access=ALL-UNNAMED", "-XX:+ErrorFileToStderr"]
    if java.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return (
        str(java.executable),
        *options,
        # TorchServe's script puts `.` first, but then a class in the working directory would be run.
        *("-cp", ":".join(map(str, jars())), "marina.Server"),
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
    # Variables that start so configure TorchServe and Python. What an archive's handler was given is its own affair.
    ours = ("TS_",) if spec.model.adopted else ("TS_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [str(directory / "first"), *filter(None, [environment.get("PYTHONPATH")])]
    threads = str(spec.threads)
    if spec.tracing:
        environment["MARINA_TRACES"] = str(directory)
    return environment | {
        OWNER_VARIABLE: str(directory),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "PROMETHEUS_MULTIPROC_DIR": str(directory / "metrics"),
        "MARINA_RENEW_DIR": str(directory / "renew"),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # glibc keeps freed memory in up to eight arenas per core; with two, a worker's memory stays near what it uses.
        "MALLOC_ARENA_MAX": "2",
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", _ALLOCATOR),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(path),
    }


def _worker_settings(spec: Spec, package: str) -> dict[str, str]:
    """Settings that the handlers read from the environment: those of `handlers/caching`, and of `routing.py` and
    `sessions.py` in `handlers/generation`."""
    settings: dict[str, dict[str, object]] = {}
    if cache := spec.serving.cache:
        # Keys of cached answers contain the package's hash. A worker cannot know it: it is inside the package.
        settings["MARINA_ANSWERS"] = {"mb": cache.mb, "ttl_s": cache.ttl_s, "redis": cache.redis, "package": package}
    if spec.text and (route := spec.text.route):
        route_settings = {"url": route.address, "short_tokens": route.short_tokens}
        settings["MARINA_ROUTE"] = route_settings
    if spec.text and (sessions := spec.text.sessions):
        settings["MARINA_SESSIONS"] = sessions.model_dump(include={"redis", "ttl_s"})
    return {name: json.dumps(values) for name, values in settings.items()}
