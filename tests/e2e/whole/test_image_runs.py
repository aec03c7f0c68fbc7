"""The digits example as an image: built from a base made of Debian's packages and from wheels, without an index, then
started as a strict cluster starts it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from container import Container
from images import Image, build, built, get, infer, install_wheel, mounted, registry, run, started, wait_ready
from specs import DIGITS, ROOT, Packaged
from strangers import write_namesakes
from tools import needs, skip_unless_required
from waiting import eventually
from wheels import make_wheel

from marina.archiver.containers.builders import Builder, find_builder
from marina.archiver.containers.layers import read_image_file, read_layout

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

HOME = ROOT / "build" / "images"
BASE = "localhost/marina/debian-python:bookworm"
LARGEST = 1_400_000_000


@pytest.fixture(scope="module", autouse=True)
def store() -> Iterator[None]:
    """A store of images of the tests' own, and a way to build that works in containers too."""
    if os.geteuid() != 0:
        skip_unless_required("images are mounted and started here by hand, which needs root")
    needs("buildah", package="buildah")
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024"]\n', encoding="utf-8")
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{HOME}/store"\nrunroot = "/run/marina-test-store"\n'
    (HOME / "storage.conf").write_text(storage, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        patch.setenv("CONTAINERS_CONF", str(HOME / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(HOME / "storage.conf"))
        yield


@pytest.fixture(scope="module")
def base() -> str:
    """The base, made once for each version of its script."""
    script = ROOT / "docker/base.sh"
    tar = HOME / f"base-{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}.tar"
    if not tar.exists():
        needs("mmdebstrap", package="mmdebstrap")
        run(script, tar)
    context = HOME / "base"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
    with suppress(FileNotFoundError):
        (context / "base.tar").unlink()
    os.link(tar, context / "base.tar")
    run("buildah", "build", "--quiet", "--layers", "--timestamp", "315532800", "--tag", BASE, context)
    return BASE


@pytest.fixture(scope="module")
def wheels() -> Path:
    """What the image is installed from."""
    return downloaded("serve")


def downloaded(extra: str) -> Path:
    """An extra's wheels, downloaded once for each set of pins."""
    pins = hashlib.sha256((ROOT / "constraints.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    folder = HOME / f"wheels-{extra}-{pins[:12]}"
    if not folder.exists():
        for old in HOME.glob(f"wheels-{extra}-*"):
            shutil.rmtree(old)
        partial = HOME / f"wheels-{extra}-{os.getpid()}"
        run(sys.executable, ROOT / "docker/install.py", "download", extra, partial)
        partial.rename(folder)
    return folder


@pytest.fixture(scope="module")
def out(packaged: Packaged, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder with the packaged digits."""
    folder, package = packaged("fp32")
    here = tmp_path_factory.mktemp("build")
    (here / "digits").mkdir()
    for name in ("package.json", package.mar):
        shutil.copy(folder / name, here / "digits" / name)
    return here


@pytest.fixture(scope="module")
def digits(base: str, wheels: Path, out: Path) -> Iterator[Image]:
    """The image of the digits example."""
    image = built(out, "--base", base, "--wheels", wheels)
    with mounted(image.reference) as root:
        yield replace(image, root=root)


def test_it_serves_read_only_as_a_plain_user_without_a_network_and_drains(digits: Image, tmp_path: Path) -> None:
    with started(digits, tmp_path / "log") as running:
        wait_ready(running)
        said = Path(f"/proc/{running.pid}/status").read_text(encoding="utf-8")
        # The supervisor is the first process, and has no rights.
        assert re.search(r"^NSpid:\s+\d+\s+1$", said, re.MULTILINE)
        assert re.search(r"^Uid:\s+10001\s", said, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", said, re.MULTILINE)
        status, body = infer(running)
        assert (status, json.loads(body)["top_labels"][0]) == (200, "3")
        assert loaded_by_java(running, ".jsa")
        assert json.loads(get(running, "/package")[1])["sha256"] == digits.record["package_sha256"]
        checked = digits.config["Healthcheck"]["Test"]
        assert checked[0] == "CMD"
        assert running.run("chroot", str(digits.root), *checked[1:]).returncode == 0

        answered: list[int] = []
        stopping = threading.Event()

        def load() -> None:
            while not stopping.is_set():
                answered.append(infer(running)[0])

        asking = threading.Thread(target=load)
        asking.start()
        eventually(lambda: len(answered) > 3)
        before = len(answered)
        os.kill(running.pid, 15)
        eventually(lambda: get(running, "/ready")[0] == 503)
        # Load balancers are still learning of it.
        served = len(answered)
        eventually(lambda: len(answered) > served + 1)
        stopping.set()
        asking.join()
        assert set(answered) == {200}
        assert len(answered) > before
        assert running.process.wait(timeout=60) == 0
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "every request that was sent before the listener closed is answered" in log


def loaded_by_java(running: Container, suffix: str) -> list[str]:
    """The files with this suffix that the server's Java has mapped into its memory."""
    (java,) = (child for child in psutil.Process(running.pid).children(recursive=True) if child.name() == "java")
    return [mapped.path for mapped in java.memory_maps() if mapped.path.endswith(suffix)]


def test_it_serves_as_any_user_and_has_no_shell_to_start(digits: Image, tmp_path: Path) -> None:
    shells = [digits.root / "usr/bin" / name for name in ("sh", "dash", "bash")]
    for shell in shells:
        shell.rename(shell.with_name(f"{shell.name}.away"))
    try:
        with started(digits, tmp_path / "log", uid=1_000_660_000) as running:
            wait_ready(running)
            assert infer(running)[0] == 200
            assert running.stop() == 0
    finally:
        for shell in shells:
            shell.with_name(f"{shell.name}.away").rename(shell)


def test_the_health_check_fails_while_nobody_serves(digits: Image, tmp_path: Path) -> None:
    checked = digits.config["Healthcheck"]["Test"][1:]
    with started(digits, tmp_path / "log", command=checked) as running:
        assert running.process.wait(timeout=30) == 1
    assert "Connection refused" in (tmp_path / "log").read_text(encoding="utf-8")


WRITING = """
import os, sys
places = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/tmp", "/dev")]
    try:
        open(os.path.join(folder, ".written"), "w").close()
        places.append(folder)
    except OSError:
        pass
    places += [path for name in files if os.access(path := os.path.join(folder, name), os.W_OK)]
print(places)
open("/tmp/.written", "w").close()
"""


def test_the_user_can_write_under_tmp_and_nowhere_else(digits: Image, tmp_path: Path) -> None:
    with started(digits, tmp_path / "log", command=[digits.config["Entrypoint"][0], "-c", WRITING]) as running:
        assert running.process.wait(timeout=60) == 0
    assert (tmp_path / "log").read_text(encoding="utf-8") == "[]\n"


def test_it_has_no_network_but_its_own(digits: Image, tmp_path: Path) -> None:
    with started(digits, tmp_path / "log") as running:
        assert running.run("ip", "-o", "link").stdout.count(b"\n") == 1
        running.process.kill()


def test_what_is_in_it_belongs_to_root_and_lends_no_rights(digits: Image) -> None:
    paths = [digits.root / "opt", digits.root / "config", digits.root / "model"]
    for path in (path for top in paths for path in [top, *top.rglob("*")]):
        state = path.lstat()
        assert (state.st_uid, state.st_gid) == (0, 0), path
        assert path.is_symlink() or not state.st_mode & 0o6022, path
        assert path.is_symlink() or state.st_mode & 0o004, path
    lending = run("find", digits.root, "-xdev", "-type", "f", "-perm", "/6000")
    assert lending == ""


def test_it_holds_what_serving_needs_and_no_more(digits: Image) -> None:
    packages = {part["name"]: part["version"] for part in digits.bill["components"]}
    assert packages["torch"].startswith("2.13.0")
    for absent in ("torchvision", "locust", "kubernetes", "torchao", "pip", "setuptools", "wheel", "pytest"):
        assert absent not in packages
    names = {path.name for path in digits.root.rglob("*") if path.is_file()}
    for absent in ("gcc", "g++", "cc1plus", "javac", "pip", "torch-model-archiver", "protoc"):
        assert absent not in names
    assert [name for name in names if "cuda" in name and name.endswith(".so")] == []
    assert [name for name in names if name.startswith(("libcublas", "libcudnn", "libnccl"))] == []
    assert not (digits.root / "opt/marina/app/config/examples").exists()
    assert digits.record["bytes"] < LARGEST


def test_no_cache_no_secret_and_no_path_of_the_build_is_in_a_layer(digits: Image) -> None:
    ours = [path for top in ("opt", "config", "model") for path in (digits.root / top).rglob("*") if path.is_file()]
    assert [path for path in ours if path.name in ("RECORD", "direct_url.json", "INSTALLER", "pip.conf")] == []
    here = {str(ROOT).encode(), b"/wheels/", b"/work/install.py", str(Path.home()).encode() + b"/."}
    texts = [path for path in ours if path.suffix in ("", ".cfg", ".json", ".pth", ".py", ".txt", ".yaml")]
    site = next((digits.root / "opt/marina/lib").glob("python3.*")) / "site-packages"
    own = [path for path in texts if site not in path.parents or path.suffix == ".pth" or path.parent == site]
    assert {path: word for path in own for word in here if word in path.read_bytes()} == {}
    for folder in ("root", "var/cache", "var/lib/apt/lists", "var/log", "tmp", "work", "wheels"):
        top = digits.root / folder
        assert [path for path in top.rglob("*") if path.is_file() and path.name not in (".bashrc", ".profile")] == []


def test_the_layers_are_in_the_order_of_how_often_they_change(digits: Image) -> None:
    made = [layer["created_by"] for layer in digits.record["layers"]]
    assert made[1:] == [
        "COPY /opt/marina",
        "COPY /opt/marina/bom.json",
        "COPY /opt/marina/app",
        "COPY /opt/marina/share",
        "COPY /opt/requirements",
        "COPY /config",
        "COPY /model",
    ]
    # A new model is a small push.
    assert sum(layer["bytes"] for layer in digits.record["layers"][-2:]) < 10_000_000


def test_it_holds_the_modules_that_a_server_needs_and_no_other(digits: Image) -> None:
    app = digits.root / "opt/marina/app"
    listed = run("git", "ls-files", "config/*.py", "server/*.py", ":!config/examples", cwd=ROOT).split()
    assert {path.relative_to(app).as_posix() for path in app.rglob("*.py")} == {
        "marina/__init__.py",
        *(f"marina/{name}" for name in listed),
    }


NAMESAKE = """
name: net
model:
  {source: ../model.py:Net, weights: random, handler: ../handlers.py:Own, compile: eager, inputs: {x: {shape: [4]}},
   requirements: ../requirements.txt}
slo: {p99_ms: 1000}
"""


def test_a_model_whose_files_have_marinas_names_and_libraries_of_its_own_is_served_from_an_image(
    base: str, wheels: Path, tmp_path: Path
) -> None:
    write_namesakes(tmp_path)
    (tmp_path / "net").mkdir()
    spec = tmp_path / "net/spec.yaml"
    spec.write_text(NAMESAKE, encoding="utf-8")
    wheel = make_wheel(tmp_path / "wheels", "shells", requires=["numpy"])
    (tmp_path / "requirements.txt").write_text(f"--no-index\n./wheels/{wheel.name}\n", encoding="utf-8")
    with (tmp_path / "handlers.py").open("a", encoding="utf-8") as handler:
        handler.write("import shells\n")
    run(sys.executable, "-m", "marina", "package", spec, "--out", tmp_path / "build", "--quiet", cwd=ROOT)
    image = built(tmp_path / "build", "--base", base, "--wheels", wheels, spec=spec)
    with mounted(image.reference) as root, started(replace(image, root=root), tmp_path / "log") as running:
        wait_ready(running)
        json_body = ("--header", "Content-Type: application/json", "--data", '{"x": [0, 0, 0, 0]}')
        status, answer = get(running, "/predictions/net", "--include", *json_body, port="inference")
    assert (status, b"X-Names: tests docker k8s loadtest" in answer) == (200, True)
    assert {"numpy", "shells", "torch"} <= {entry["name"] for entry in image.bill["components"]}


def test_a_marina_from_its_wheel_builds_the_same_layers_and_another_model_changes_the_last_alone(
    digits: Image, base: str, wheels: Path, out: Path, tmp_path: Path
) -> None:
    options = ("--base", base, "--wheels", wheels, "--model-at-runtime", "--tag", "empty")
    plain = build(out, *options, marina=install_wheel(tmp_path))
    assert plain["package_sha256"] is None
    layers, others = digits.record["layers"], plain["layers"]
    assert layers[:-1] == others[:-1]
    assert layers[-1] != others[-1]
    with mounted(f"{plain['ref']}:empty") as root:
        assert list((root / "model").iterdir()) == []


def test_the_load_generator_is_an_image_without_torch(base: str, out: Path, tmp_path: Path) -> None:
    image = built(out, "--base", base, "--wheels", downloaded("loadtest"), "--target", "loadtest")
    packages = {part["name"] for part in image.bill["components"]}
    assert "locust" in packages
    assert not packages & {"torch", "torchserve", "openjdk", "pip"}
    assert image.record["package_sha256"] is None
    assert json.loads((out / "digits/image-loadtest.json").read_text(encoding="utf-8")) == image.record
    with mounted(image.reference) as root:
        image = replace(image, root=root)
        with started(image, tmp_path / "help") as running:
            assert running.process.wait(timeout=60) == 0
        # What a Job starts it with.
        load_pod = [f"{image.config['Entrypoint'][0]}", "-m", "marina.loadtest.sending.pod", "--help"]
        with started(image, tmp_path / "load_pod", command=load_pod) as running:
            assert running.process.wait(timeout=60) == 0, (tmp_path / "load_pod").read_text(encoding="utf-8")
    assert "marina loadtest" in (tmp_path / "help").read_text(encoding="utf-8")


def test_its_labels_say_what_it_is(digits: Image) -> None:
    labels = digits.config["Labels"]
    assert labels["org.opencontainers.image.title"] == "digits"
    assert labels["org.opencontainers.image.version"] == "1.0"
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert labels["marina.package.sha256"] == digits.record["package_sha256"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_a_build_that_fails_shows_what_the_builder_said(out: Path) -> None:
    command = [sys.executable, "-m", "marina", "image", DIGITS, "--out", out, "--builder", "buildah"]
    failed = subprocess.run(
        [*command, "--base", "localhost/there/is/none:1"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert failed.returncode == 1
    assert "error: `buildah` failed with exit code " in failed.stderr
    assert "localhost/there/is/none" in failed.stderr
    assert f"hint: see {out}/digits/image.log" in failed.stderr


def test_a_pushed_image_has_the_digest_that_the_registry_tells(tmp_path: Path) -> None:
    program = needs("docker-registry", package="docker-registry")
    builder = find_builder("buildah")
    assert isinstance(builder, Builder)
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY file /\n", encoding="utf-8")
    (context / "file").write_text("content", encoding="utf-8")
    with registry(program, tmp_path) as port, pytest.MonkeyPatch.context() as patch:
        trusted = f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
        (tmp_path / "registries.conf").write_text(trusted, encoding="utf-8")
        patch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
        reference = f"127.0.0.1:{port}/marina/small:1"
        run("buildah", "build", "--quiet", "--format", "docker", "--tag", reference, context)
        run(*builder.push(reference, tmp_path / "digest"))
        digest = builder.pushed_digest(reference, tmp_path / "digest")
        accept = "Accept: application/vnd.docker.distribution.manifest.v2+json"
        url = f"http://127.0.0.1:{port}/v2/marina/small/manifests/1"
        head = run("curl", "--silent", "--head", "--header", accept, url)
        assert f"docker-content-digest: {digest}" in head.lower()
        run(*builder.export(reference, tmp_path / "image"))
        assert [layer.created_by for layer in read_layout(tmp_path / "image").layers] == ["COPY /"]
        assert read_image_file(tmp_path / "image", "file") == b"content"
        run("buildah", "rmi", reference)
