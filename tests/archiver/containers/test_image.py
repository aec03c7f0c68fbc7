import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from specs import ROOT, Packaged, digits_spec

from marina.archiver.containers.build import _ARGUMENTS, ImageOptions, _without_tag, build_image, image_reference
from marina.archiver.containers.builders import Builder, BuildRequest, find_builder
from marina.config.errors import InputError, Refused, ToolMissing
from marina.config.progress import Progress
from marina.config.render import Ports
from marina.config.sections import Kubernetes
from marina.k8s.manifests import model_volume

BUILD = BuildRequest(
    context=Path("/repository"),
    target="cpu",
    reference="registry.local/marina/digits:1.0",
    epoch=315532800,
    arguments={"BASE": "my/python@sha256:0"},
    contexts={"wheels": Path("/wheels"), "package": Path("/staged")},
    labels={"b": "2", "a": "one word"},
    pip_conf=Path("/etc/pip.conf"),
)
WHAT = (
    "--build-arg BASE=my/python@sha256:0 --build-context package=/staged --build-context wheels=/wheels "
    "--label 'a=one word' --label b=2 --secret id=pip,src=/etc/pip.conf "
    "--file /repository/docker/Dockerfile --target cpu --tag registry.local/marina/digits:1.0 /repository"
)
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)


def refusal(folder: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as refused:
        build_image(digits_spec(), folder, ImageOptions(**options), progress=Progress(quiet=True))
    return refused.value


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (
            "docker",
            "docker buildx build --provenance=false --output type=docker,rewrite-timestamp=true "
            "--build-arg SOURCE_DATE_EPOCH=315532800",
        ),
        ("podman", "podman build --format docker --layers --pull=false --timestamp 315532800"),
        ("buildah", "buildah build --format docker --layers --pull=false --timestamp 315532800"),
    ],
)
def test_each_builder_gets_the_same_build_in_its_own_options(name: Any, head: str) -> None:
    assert shlex.join(Builder(name, "1").build(BUILD)) == f"{head} {WHAT}"


@pytest.mark.parametrize(
    ("name", "export", "push"),
    [
        ("docker", "docker save --output /f r/n:1", "docker push r/n:1"),
        (
            "podman",
            "podman save --quiet --format docker-dir --output /f r/n:1",
            "podman push --quiet --digestfile /d r/n:1 docker://r/n:1",
        ),
        (
            "buildah",
            "buildah push --quiet --disable-compression r/n:1 dir:/f",
            "buildah push --quiet --digestfile /d r/n:1 docker://r/n:1",
        ),
    ],
)
def test_each_builder_exports_and_pushes_with_its_own_options(name: Any, export: str, push: str) -> None:
    builder = Builder(name, "1")
    assert shlex.join(builder.export("r/n:1", Path("/f"))) == export
    assert shlex.join(builder.push("r/n:1", Path("/d"))) == push


def test_the_first_builder_that_works_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # A client without a daemon, as on many machines.
    program(tmp_path, "docker", 'case $1 in buildx) echo "x v0.30.1 y";; *) echo "Cannot connect" >&2; exit 1;; esac')
    program(tmp_path, "buildah", 'echo "buildah version 1.28.2 (x)"')
    assert find_builder() == Builder("buildah", "1.28.2")
    program(tmp_path, "docker", 'case $1 in buildx) echo "x v0.30.1 y";; *) echo 28.2.2;; esac')
    assert find_builder() == Builder("docker", "buildx v0.30.1")
    assert find_builder("buildah") == Builder("buildah", "1.28.2")


def test_without_a_builder_the_error_says_why_each_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", 'echo "docker: unknown command: docker buildx" >&2; exit 1')
    with pytest.raises(ToolMissing) as missing:
        find_builder()
    assert str(missing.value) == (
        "no container builder works here:\n"
        "  docker: docker: unknown command: docker buildx\n"
        "  podman: not installed\n"
        "  buildah: not installed\n\n"
        "hint: start Docker with buildx, or: apt-get install buildah"
    )
    with pytest.raises(ToolMissing, match=re.escape("`podman` cannot build here:\n  podman: not installed")):
        find_builder("podman")
    with pytest.raises(
        InputError, match=re.escape("`--builder`: got `kaniko`, allowed: `buildah`, `docker`, `podman`")
    ):
        find_builder("kaniko")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("docker", 'in /etc/docker/daemon.json: {"insecure-registries": ["lab:5000"]}, then restart Docker'),
        ("buildah", 'in /etc/containers/registries.conf: [[registry]] location = "lab:5000", insecure = true; '),
    ],
)
def test_a_registry_without_tls_gets_a_hint(name: Any, hint: str) -> None:
    output = 'Get "https://lab:5000/v2/": http: server gave HTTP response to HTTPS client'
    assert (Builder(name, "").push_hint("lab:5000/m/digits:1", output) or "").startswith(hint)
    assert Builder(name, "").push_hint("lab:5000/m/digits:1", "denied: no access") is None


def test_the_digest_is_that_of_the_repository_that_docker_pushed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", "echo other:5000/digits@sha256:1; echo registry:5000/digits@sha256:2")
    assert Builder("docker", "").pushed_digest("registry:5000/digits:1.0", tmp_path / "none") == "sha256:2"


def test_the_digest_is_found_although_docker_leaves_out_its_own_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", "echo mine/digits@sha256:3")
    docker = Builder("docker", "")
    assert docker.pushed_digest("docker.io/mine/digits:1.0", tmp_path / "none") == "sha256:3"
    with pytest.raises(
        Refused, match="lab/digits:1: was pushed, but docker shows no digest of it: mine/digits@sha256:3"
    ):
        docker.pushed_digest("lab/digits:1", tmp_path / "none")


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("python:3.11-slim", "python"),
        ("registry.local:5000/python", "registry.local:5000/python"),
        ("registry.local:5000/python:3.11", "registry.local:5000/python"),
        ("docker.io/library/python@sha256:0", "docker.io/library/python"),
    ],
)
def test_a_digest_replaces_the_tag(reference: str, name: str) -> None:
    assert _without_tag(reference) == name


def test_an_image_needs_a_package(tmp_path: Path) -> None:
    assert refusal(tmp_path).message == f"{tmp_path / 'package.json'}: nothing was packaged yet"


@pytest.mark.parametrize("traces", [False, True])
def test_only_the_image_of_a_spec_that_traces_gets_the_sdk(traces: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "case $1 in --version) echo 'buildah version 1.28.2 (x)';; *)"
    program(tmp_path, "buildah", f'{said} echo "$@" > {tmp_path}/told; exit 1;; esac')
    spec = digits_spec({"tracing": {"endpoint": "http://collector.watch:4318"}} if traces else {})
    options = ImageOptions(builder="buildah", model_at_runtime=True)
    with pytest.raises(Refused):
        build_image(spec, tmp_path / "out", options, progress=Progress(quiet=True))
    assert ("MORE_EXTRAS=tracing" in (tmp_path / "told").read_text().split()) is traces


@pytest.mark.slow
def test_a_package_that_was_changed_is_refused(packaged: Packaged, tmp_path: Path) -> None:
    folder, package = packaged("fp32")
    (tmp_path / "package.json").write_bytes((folder / "package.json").read_bytes())
    (tmp_path / package.mar).write_bytes((folder / package.mar).read_bytes() + b"x")
    assert "model.mar: missing, or not the file that" in refusal(tmp_path).message


@pytest.mark.slow
def test_a_package_that_compiles_while_serving_gets_no_image(packaged: Packaged) -> None:
    refused = refusal(packaged("jit")[0])
    assert "`model.compile` is `jit`, which compiles while serving, but images contain no compiler" in refused.message
    assert refused.hint == "compile: aot"


@pytest.mark.slow
def test_a_package_for_the_cpu_gets_no_cuda_image(packaged: Packaged) -> None:
    refused = refusal(packaged("fp32")[0], target="cuda")
    assert refused.message == "`--target`: got `cuda`, but the package is for `cpu`"
    assert refused.hint == "--target cpu, or --model-at-runtime"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_digest": "sha256:1"}, "`--base-digest`: got `sha256:1`, allowed: `sha256:` and 64 hexadecimal digits"),
        ({"wheels": Path("/proc/self")}, "`--wheels`: no wheels in `/proc/self`"),
        ({"build_arg": ("BASE=x",)}, "`--build-arg`: got `BASE=x`, allowed: `BUILD_BASE=…`, `TORCH_INDEX=…`"),
        ({"pip_conf": Path("/none")}, "`--pip-conf`: no such file: /none"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_built(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    assert refusal(tmp_path, model_at_runtime=True, **options).message == message


def stage(name: str) -> dict[str, str]:
    """The instructions of one stage of the Dockerfile and of the stages it builds on. Instructions that may occur more
    than once are joined; of the others, the last counts."""
    text = re.search(rf"^FROM (\S+) AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    if text is None:
        return {}
    joined = re.sub(r"^#.*\n", "", text[2].replace("\\\n", " "), flags=re.MULTILINE)
    instructions = stage(text[1])
    for line in filter(None, joined.splitlines()):
        word, _, rest = line.partition(" ")
        several = word in instructions and word in ("COPY", "ENV", "RUN")
        instructions[word] = f"{instructions[word]}\n{rest}" if several else rest
    return instructions


@pytest.mark.parametrize("target", ["cpu", "cuda", "loadtest", "vllm"])
def test_what_is_kept_of_a_build_runs_nothing_and_has_no_rights(target: str) -> None:
    instructions = stage(target)
    assert "RUN" not in DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    assert instructions["USER"] == f"{Kubernetes().run_as_user}:0"
    # Exec forms only, which need no shell.
    assert isinstance(json.loads(instructions["ENTRYPOINT"]), list)
    assert isinstance(json.loads(instructions["CMD"]), list)


def test_the_serving_images_differ_only_in_what_runs_them() -> None:
    cpu, cuda, vllm = stage("cpu"), stage("cuda"), stage("vllm")
    for word in ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "USER", "WORKDIR"):
        assert cpu[word] == cuda[word] == vllm[word]
    assert re.sub("(python|classes)-cuda", r"\1-cpu", cuda["COPY"]) == cpu["COPY"]
    assert vllm["COPY"] == f"--from=python-vllm /opt/vllm /opt/vllm\n{cpu['COPY']}"
    assert cuda["ENV"] == vllm["ENV"]
    assert cuda["ENV"].startswith(cpu["ENV"])
    assert cpu["COPY"].splitlines()[-1] == "--from=package /model /model"


def test_the_image_uses_the_ports_that_the_manifests_expect() -> None:
    instructions = stage("cpu")
    arguments = json.loads(instructions["CMD"])
    assert arguments[:3] == ["/config/spec.yaml", "--mar", model_volume.IN_IMAGE]
    assert instructions["EXPOSE"] == f"{Ports().inference} {Ports().supervisor}"
    assert f":{Ports().supervisor}/ready" in instructions["HEALTHCHECK"]


def test_every_allowed_build_argument_is_one_of_the_dockerfile() -> None:
    assert set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE)) == {"BASE", "MORE_EXTRAS", *_ARGUMENTS}


def test_an_image_for_another_device_has_its_own_tag() -> None:
    spec = digits_spec()
    assert image_reference(spec, "cpu", ImageOptions()) == ("registry.local/marina/digits", "1.0")
    assert image_reference(spec, "cuda", ImageOptions()) == ("registry.local/marina/digits", "1.0-cuda")
    assert image_reference(spec, "cuda", ImageOptions(tag="7")) == ("registry.local/marina/digits", "7")
    assert image_reference(spec, "loadtest", ImageOptions())[0] == "registry.local/marina/marina-loadtest"


# Runs a builder, here a program that never ends.
_BUILDS = """
import sys
from pathlib import Path
from marina.archiver.containers.build import _run
_run(("builder",), Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_builder_ends_with_its_command(number: signal.Signals, tmp_path: Path) -> None:
    program(tmp_path, "builder", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", _BUILDS, str(tmp_path / "log")], env=environment) as command:
        while not (tmp_path / "pid").exists():
            assert command.poll() is None
        builder = os.pidfd_open(int((tmp_path / "pid").read_text()))
        command.send_signal(number)
    try:
        # The file descriptor of a process becomes readable when the process ends.
        assert select.select([builder], [], [], 60)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(builder, signal.SIGKILL)
        os.close(builder)
