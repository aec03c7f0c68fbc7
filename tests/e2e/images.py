"""Building images with `marina image`, starting them, and asking them, for tests of images."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container import Container, container
from specs import DIGITS, ROOT
from waiting import eventually

PORTS = {"inference": 8080, "pages": 8090}


@dataclass(frozen=True)
class Image:
    """What `marina image` made: its record, its bill of materials, and its root as a folder."""

    reference: str
    record: dict[str, Any]
    bill: dict[str, Any]
    config: dict[str, Any]
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    @property
    def command(self) -> list[str]:
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def install_wheel(place: Path) -> Path:
    """Marina's wheel, built and installed below `place`; the folder with its packages."""
    tree = place / "tree"
    shutil.copytree(
        ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "build", "tests", "__pycache__")
    )
    pip = (sys.executable, "-m", "pip", "--quiet", "--no-input")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, tree)
    run(
        *pip,
        "install",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        place / "installed",
        *place.glob("marina_torchserve-*.whl"),
    )
    return next((place / "installed").glob("lib/python*/site-packages"))


def build(out: Path, *options: str | Path, marina: Path = ROOT, spec: Path = DIGITS) -> dict[str, Any]:
    """`marina image` of the Marina in a folder; its record."""
    environment = os.environ | {"PYTHONPATH": str(marina)}
    command = [sys.executable, "-m", "marina", "image", spec, "--out", out, "--builder", "buildah", *options]
    record: dict[str, Any] = json.loads(run(*command, "--json", "--quiet", cwd=marina, env=environment))
    return record


def built(out: Path, *options: str | Path, spec: Path = DIGITS) -> Image:
    """`marina image`, and all that is known of what it made; `root` is still to be mounted."""
    record = build(out, *options, spec=spec)
    reference = f"{record['ref']}:{record['tag']}"
    config = json.loads(run("buildah", "inspect", "--type", "image", reference))["Docker"]["config"]
    bom = "bom.json" if record["target"] == "cpu" else f"bom-{record['target']}.json"
    bill = json.loads((out / spec.parent.name / bom).read_text(encoding="utf-8"))
    return Image(reference, record, bill, config, root=Path("/nowhere"))


@contextmanager
def mounted(reference: str) -> Iterator[Path]:
    """An image's root as a folder."""
    name = run("buildah", "from", "--pull-never", reference)
    try:
        yield Path(run("buildah", "mount", name))
    finally:
        run("buildah", "rm", name)


@contextmanager
def started(image: Image, log: Path, *, uid: int = 10001, command: list[str] | None = None) -> Iterator[Container]:
    with container(image.root, command or image.command, image.environment, uid=uid, log=log) as running:
        yield running


def get(running: Container, path: str, *options: str, port: str = "pages") -> tuple[int, bytes]:
    """Status and body of a page, asked for inside the container's network."""
    url = f"http://127.0.0.1:{PORTS[port]}{path}"
    answer = running.run("curl", "--silent", "--write-out", "\n%{http_code}", *options, url).stdout
    body, _, status = answer.rpartition(b"\n")
    return int(status or 0), body


def wait_ready(running: Container) -> None:
    def ready() -> bool:
        assert running.process.poll() is None, running.log.read_text(encoding="utf-8")
        return get(running, "/ready")[0] == 200

    eventually(ready, within_s=180)


def infer(running: Container) -> tuple[int, bytes]:
    posted = ("--header", "Content-Type: image/png", "--data-binary", f"@{DIGITS.parent}/samples/3.png")
    return get(running, "/predictions/digits", *posted, port="inference")


@contextmanager
def registry(program: str, folder: Path) -> Iterator[int]:
    """A real registry on loopback; its port."""
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\nlog: {accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\nhttp: {{addr: '127.0.0.1:0'}}\n",
        encoding="utf-8",
    )
    log = folder / "registry.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([program, "serve", str(config)], stdout=stream, stderr=stream)
    try:
        address = eventually(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text(encoding="utf-8")))
        assert address
        yield int(address[1])
    finally:
        process.terminate()
        process.wait()
