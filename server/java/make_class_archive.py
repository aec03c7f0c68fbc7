"""Makes the archive from which Java loads its classes: `python -m marina.server.java.make_class_archive`.

A small model is served with the options of every server and answers one request. Java writes down the classes that it
loads on the way, and then puts them into the archive. `make setup` does this, and so does the build of an image."""

import json
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import IO

from marina.config.errors import MarinaError, ToolMissing
from marina.config.load import parse_spec
from marina.config.ports import free_port_base
from marina.config.render import Ports, render_model_config
from marina.config.spec import Spec
from marina.server.java.checks import find_java
from marina.server.java.door import Door
from marina.server.java.frontend import Frontend, NoAnswerError
from marina.server.java.launch import class_archive, jars, plan_launch

_SPEC = {
    "name": "classes",
    "model": {
        "source": "./model.py:build",
        "weights": "random",
        "handler": "./handler.py:Handler",
        "inputs": {"x": {"shape": [1]}},
        "batch_sizes": [1],
    },
    "serving": {"workers": 1, "threads": 1, "max_batch": 1, "java_heap_mb": 128},
    "slo": {"p99_ms": 50},
}
_HANDLER = 'def handle(requests, context):\n    return ["answered"] * len(requests or ())\n'
_HOST, _READY_S = "127.0.0.1", 300


def make_class_archive() -> Path:
    """Makes the archive for this environment's Java and jars, and removes those for others."""
    java = find_java()
    archive = class_archive(java, jars())
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="marina-") as folder,
        tempfile.TemporaryDirectory(dir=archive.parent) as beside,
    ):
        classes, partial = Path(folder, "classes"), Path(beside, archive.name)
        _serve_once(Path(folder), classes)
        # Sorted and without the order of loading, so that the same classes give the same archive.
        lines = {line.partition(" id:")[0] for line in classes.read_text(encoding="utf-8").splitlines()}
        classes.write_text("".join(f"{line}\n" for line in sorted(lines) if line[:1] != "#"), encoding="utf-8")
        options = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={partial}", "-XX:+UseSerialGC"]
        if java.version >= 17:
            options.append("--enable-native-access=ALL-UNNAMED")  # as the server has it: Java 25 compares them
        command = [str(java.executable), "-Xshare:dump", *options, "-cp", ":".join(map(str, jars()))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not partial.exists():
            raise ToolMissing(f"Java made no archive of its classes: {(done.stdout + done.stderr)[-2000:]}")
        for old in archive.parent.glob("java-*.jsa"):
            old.unlink()
        return partial.rename(archive)


def _serve_once(folder: Path, classes: Path) -> None:
    """Starts TorchServe with a small model, and stops it after an answer; Java writes what it loaded into `classes`."""
    spec = parse_spec(json.dumps(_SPEC), folder / "spec.yaml", files=False)
    ports, directory = Ports(free_port_base()), folder / "run"
    directory.mkdir()
    launch = plan_launch(
        spec, mar=_write_mar(spec, folder), ports=ports, host=_HOST, directory=directory, java=find_java()
    )
    executable, *options = launch.command
    launch = replace(launch, command=(executable, "-Xshare:off", f"-XX:DumpLoadedClassList={classes}", *options))
    door, output = Door(_HOST, ports.inference), list[bytes]()
    process = launch.start(door)
    try:
        door.close_java_end()
        streams = filter(None, (process.stdout, process.stderr))
        readers = [Thread(target=_collect, args=(stream, output), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        frontend, deadline = Frontend(spec.name, ports, _HOST, directory), time.monotonic() + _READY_S
        while not _answers(frontend):
            if process.poll() is not None or time.monotonic() > deadline:
                for reader in readers:
                    reader.join(1)  # what Java said last; a worker may keep the pipe open
                raise ToolMissing(f"TorchServe does not start: {b''.join(output)[-2000:].decode(errors='replace')}")
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        door.close()


def _collect(stream: IO[bytes], output: list[bytes]) -> None:
    output.extend(stream)


def _answers(frontend: Frontend) -> bool:
    note = list[str]().append
    try:
        workers = frontend.describe().workers
        frontend.counters(frontend.metrics())
        if not workers or not workers[0].ready:
            return False
        return frontend.infer(b"{}", "application/json", timeout_s=10, before=note, refused=note) == 200
    except NoAnswerError:
        return False


def _write_mar(spec: Spec, folder: Path) -> Path:
    model = {"modelName": spec.name, "modelVersion": spec.version, "handler": "handler.py"}
    manifest = {"runtime": "python", "createdOn": "-", "model": model | {"configFile": "model-config.yaml"}}
    mar = folder / "classes.mar"
    with zipfile.ZipFile(mar, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", _HANDLER)
        archive.writestr("model-config.yaml", render_model_config(spec))
    return mar


if __name__ == "__main__":
    try:
        print(make_class_archive())
    except MarinaError as err:
        sys.exit(f"error: {err}")
