"""Container builders: which of docker, podman and buildah works here, and the command lines of each, as data."""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from marina.config.errors import InputError, Refused, ToolMissing, listed

Command = tuple[str, ...]
_TLS_TROUBLE = re.compile(
    r"HTTP response to HTTPS client|x509: |certificate signed by unknown|first record does not look"
)


@dataclass(frozen=True)
class BuildRequest:
    """One image to build."""

    context: Path
    """A folder with `docker/Dockerfile` and the code."""
    target: str
    reference: str
    epoch: int
    """The timestamp of every file in the image, so that equal inputs give equal layers."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pip_conf: Path | None = None
    """Passed as a secret, so that it is in no layer and not in the history."""


@dataclass(frozen=True)
class Builder:
    """An installed container builder, and its commands."""

    name: Literal["docker", "podman", "buildah"]
    version: str

    def build(self, request: BuildRequest) -> Command:
        """The command that builds an image into the builder's own store."""
        head: Command
        if self.name == "docker":
            head = ("docker", "buildx", "build", "--provenance=false", "--output", "type=docker,rewrite-timestamp=true")
            head += ("--build-arg", f"SOURCE_DATE_EPOCH={request.epoch}")
        else:
            # Docker's format, because the OCI's has no health check. With layers, because the model would otherwise be
            # in the same layer as torch.
            head = (self.name, "build", "--format", "docker", "--layers", "--pull=false")
            head += ("--timestamp", str(request.epoch))
        options = [
            *_pairs("--build-arg", request.arguments),
            *_pairs("--build-context", request.contexts),
            *_pairs("--label", request.labels),
        ]
        if request.pip_conf:
            options += ["--secret", f"id=pip,src={request.pip_conf}"]
        dockerfile = request.context / "docker" / "Dockerfile"
        where = ("--file", str(dockerfile), "--target", request.target, "--tag", request.reference)
        return (*head, *options, *where, str(request.context))

    def export(self, reference: str, place: Path) -> Command:
        """The command that writes an image to a tar file, with docker, or to a folder."""
        if self.name == "docker":
            return ("docker", "save", "--output", str(place), reference)
        if self.name == "podman":
            return ("podman", "save", "--quiet", "--format", "docker-dir", "--output", str(place), reference)
        return ("buildah", "push", "--quiet", "--disable-compression", reference, f"dir:{place}")

    def push(self, reference: str, digest: Path) -> Command:
        """The command that pushes an image to its registry; podman and buildah write its digest to the file."""
        if self.name == "docker":
            return ("docker", "push", reference)
        return (self.name, "push", "--quiet", "--digestfile", str(digest), reference, f"docker://{reference}")

    def push_hint(self, reference: str, output: str) -> str | None:
        """What to change if the registry does not speak TLS or has an unknown certificate; None for other failures."""
        if not _TLS_TROUBLE.search(output):
            return None
        registry = reference.partition("/")[0]
        if self.name == "docker":
            return f'in /etc/docker/daemon.json: {{"insecure-registries": ["{registry}"]}}, then restart Docker'
        return (
            f'in /etc/containers/registries.conf: [[registry]] location = "{registry}", insecure = true; '
            f"`{self.name} push --tls-verify=false` does the same for a single push, without `marina image`"
        )

    def pushed_digest(self, reference: str, digest: Path) -> str:
        """After `push`, the digest of the manifest in the registry."""
        if self.name != "docker":
            return digest.read_text(encoding="utf-8").strip()
        # Docker leaves out its own registry in what it shows.
        repository = reference.rpartition(":")[0].removeprefix("docker.io/").removeprefix("library/")
        shown = _output_of("docker", "image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', reference)
        digests = (line.partition("@")[2] for line in shown.splitlines() if line.startswith(f"{repository}@"))
        if (shown_digest := next(digests, None)) is None:
            raise Refused(f"{reference}: was pushed, but docker shows no digest of it: {shown or 'none at all'}")
        return shown_digest


def find_builder(name: str | None = None) -> Builder:
    """The named builder, or the first that works here; if none does, ToolMissing says why."""
    if name is not None and name not in _PROBES:
        raise InputError(f"`--builder`: got `{name}`, allowed: {listed(_PROBES)}")
    reasons = []
    for candidate in [name] if name else _PROBES:
        try:
            return _PROBES[candidate]()
        except _NotUsable as err:
            reasons.append(f"{candidate}: {err}")
    failure = f"`{name}` cannot build here" if name else "no container builder works here"
    hint = "start Docker with buildx, or: apt-get install buildah"
    raise ToolMissing("\n  ".join([f"{failure}:", *reasons]), hint=hint)


class _NotUsable(Exception):
    pass


def _docker() -> Builder:
    version = _output_of("docker", "buildx", "version").split()
    # The client is often installed without a running daemon, which only this command notices.
    _output_of("docker", "version", "--format", "{{.Server.Version}}")
    return Builder("docker", f"buildx {version[1] if len(version) > 1 else ''}".strip())


_PROBES: dict[str, Callable[[], Builder]] = {
    "docker": _docker,
    "podman": lambda: Builder("podman", _output_of("podman", "version", "--format", "{{.Client.Version}}")),
    "buildah": lambda: Builder("buildah", _output_of("buildah", "--version").split()[2]),
}


def _output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise _NotUsable("not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _NotUsable((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0])
    return done.stdout.strip()


def _pairs(option: str, values: Mapping[str, object]) -> list[str]:
    return [word for name, value in sorted(values.items()) for word in (option, f"{name}={value}")]
