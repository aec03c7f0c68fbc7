"""Asks pip which wheels fit, downloads them, and says what its failures mean."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marina.archiver.requirements.reading import MAKE_A_WHEEL, Line
from marina.config.errors import MarinaError, SourceError, ToolMissing
from marina.config.requirements import Requirements, Wheel, file_digest, running_python

# Far longer than pip needs, so that it does not look forever for versions that fit.
_TIMEOUT_S = 1800
_UNREACHABLE = re.compile(r"(?:after connection broken by|Could not fetch URL).*", re.IGNORECASE)
_HOST = re.compile(r"host='([^']+)'|https?://(?:[^/@\s]*@)?([^/\s:']+)")
_NO_MATCH = re.compile(r"No matching distribution found for (.+)")
_FROM_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_CONFLICT = "The conflict is caused by:"
_CONSTRAINT = re.compile(r"The user requested \(constraint\) ([^=\s]+)==\S+")


class Pip:
    """Runs pip for an environment that claims to have what a worker has, and nothing else.

    `where` says in errors who names the file; `worker` are the versions of a worker's distributions."""

    def __init__(self, file: Path, where: str, worker: dict[str, str], scratch: Path) -> None:
        if not any(metadata.distributions(name="pip")):
            raise ToolMissing(f"{where}: this Python has no pip", hint=f"{sys.executable} -m ensurepip")
        self._file, self._where, self._worker, self._scratch = file, where, worker, scratch
        venv.EnvBuilder(symlinks=True).create(scratch / "worker")
        self._python = scratch / "worker" / "bin" / "python"
        self._site = next((scratch / "worker" / "lib").glob("python3*/site-packages"))
        for name, version in worker.items():
            text = metadata.distribution(name).read_text("METADATA") or f"Name: {name}\nVersion: {version}\n"
            _describe(self._site, name, version, text)
        self._pins = scratch / "worker.txt"
        self._pins.write_text("".join(f"{name}=={version}\n" for name, version in worker.items()), encoding="utf-8")

    def lock(self, lines: Sequence[Line], wheels: Path) -> Requirements:
        """Resolves the requirements, and puts their wheels into the folder."""
        instead = [both for line in lines if (both := line.replacement)]
        for other, name in instead:
            self._replace(name, other, lines)
        given = ["--requirement", str(self._file.resolve()), "--constraint", str(self._pins)]
        found = self._report(*given, *(str(other) for other, _ in instead))
        for name in {name for _, name in instead} & {canonicalize_name(entry["metadata"]["name"]) for entry in found}:
            text = f"{self._where}: something needs another version of `{name}` than what is installed instead has"
            raise SourceError(text, hint=f"in {self._file}, name a version that fits of what is installed instead")
        found.sort(key=lambda entry: canonicalize_name(entry["metadata"]["name"]))
        requirements = Requirements(python=running_python(), wheels=tuple(map(_pin, found)))
        wheels.mkdir(parents=True, exist_ok=True)
        missing = []
        for entry, wheel in zip(found, requirements.wheels, strict=True):
            url = urlsplit(entry["download_info"]["url"])
            if url.scheme == "file":
                shutil.copyfile(unquote(url.path), wheels / wheel.file)
            elif not (wheels / wheel.file).is_file() or file_digest(wheels / wheel.file) != wheel.sha256:
                # Not the URL of the record, from which the password was taken.
                pin = f"{wheel.name} @ {url.geturl()}" if wheel.url else f"{wheel.name}=={wheel.version}"
                missing.append(f"{pin} --hash=sha256:{wheel.sha256}")
        if missing:
            self._download(lines, missing, wheels)
        return requirements

    def _report(self, *wanted: str) -> list[dict[str, Any]]:
        """What pip would install."""
        report = self._scratch / "report.json"
        self._run("install", "--dry-run", "--report", str(report), *wanted)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return found

    def _replace(self, name: str, other: Requirement, lines: Sequence[Line]) -> None:
        """Lets pip think that a library is there, in the version that its replacement has."""
        alone = self._write(lines, [str(other)])
        found = self._report("--no-deps", "--requirement", str(alone), "--constraint", str(self._pins))
        version = found[0]["metadata"]["version"] if found else self._worker[canonicalize_name(other.name)]
        _describe(self._site, name, version, f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def _write(self, lines: Sequence[Line], wanted: list[str]) -> Path:
        """A requirements file with these alone, from the indexes that the lines name."""
        file = self._scratch / "exact.txt"
        options = [line.text for line in lines if line.is_option and not line.names_file]
        file.write_text("\n".join([*options, *wanted, ""]), encoding="utf-8")
        return file

    def _download(self, lines: Sequence[Line], missing: list[str], wheels: Path) -> None:
        """Downloads exactly these wheels, from the indexes that the file names."""
        exact = self._write(lines, missing)
        # Beside their place: a download that was cut off must not look like a wheel.
        with tempfile.TemporaryDirectory(dir=wheels.parent) as partial:
            self._run("download", "--no-deps", "--dest", partial, "--requirement", str(exact))
            for wheel in Path(partial).iterdir():
                wheel.replace(wheels / wheel.name)

    def _run(self, verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self._python), verb, *options]
        command += ["--only-binary", ":all:", "--retries", "2", "--no-input", "--no-color", "--progress-bar", "off"]
        # What it prints is read.
        environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "0", "PIP_VERBOSE": "0"}
        try:
            # Paths in a requirements file are relative to the folder in which pip runs.
            folder = self._file.resolve().parent
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as err:
            text = f"{self._where}: pip found no versions that fit together in {_TIMEOUT_S // 60} minutes"
            raise SourceError(text, hint=f"pin versions in {self._file}") from err
        if done.returncode:
            raise self._failure(done.stdout + done.stderr)

    def _failure(self, output: str) -> MarinaError:
        """What pip's output says, as an error that says what to do."""
        if _CONFLICT in output:
            causes = output.split(_CONFLICT)[-1].strip().partition("\n\n")[0].splitlines()
            told = [_CONSTRAINT.sub(self._of_worker, cause.strip()) for cause in causes]
            told = [cause.replace("The user requested", f"{self._file.name} asks for") for cause in told]
            text = "\n  ".join([f"{self._where}: no versions fit together:", *told])
            return SourceError(text, hint=f"in {self._file}: other versions, or a library that works with a worker's")
        if unreachable := _UNREACHABLE.search(output):
            host = _HOST.search(unreachable[0]) or _HOST.search(output)
            named = f"`{host[1] or host[2]}`" if host else "the package index"
            text = f"{self._where}: {named} cannot be reached, and these requirements were not resolved here before"
            hint = "package once with a network, or write into the file: --no-index --find-links ./wheels"
            return SourceError(text, hint=hint)
        if none := _NO_MATCH.search(output):
            return self._no_wheel(none[1].strip(), output)
        if "DO NOT MATCH THE HASHES" in output:
            expected, got = re.search(r"Expected \w+ (\w+)", output), re.search(r"Got\s+(\w+)", output)
            shown = f": got {got[1]}, allowed: {expected[1]}" if got and expected else ""
            return SourceError(f"{self._where}: a wheel is not the one whose hash is written{shown}")
        errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
        return SourceError(f"{self._where}: pip: {(errors or ['no message'])[-1].removeprefix('ERROR: ')[:400]}")

    def _no_wheel(self, wanted: str, output: str) -> SourceError:
        found = _FROM_VERSIONS.search(output)
        versions = found[1].split(", ")[-5:] if found and found[1] != "none" else []
        shown = f", found: {', '.join(versions)}" if versions else ""
        machine = f"Python {running_python()} on {os.uname().machine}"
        text = f"{self._where}: no wheel of `{wanted}` for {machine} in the index{shown}"
        made = MAKE_A_WHEEL.format(wanted)
        return SourceError(text, hint=f"correct its name or version; if there is only source code: {made}")

    def _of_worker(self, cause: re.Match[str]) -> str:
        return f"a worker has {describe(canonicalize_name(cause[1]), self._worker)}"


def describe(name: str, worker: dict[str, str]) -> str:
    """One of a worker's distributions, its version, and what it is there for."""
    if name == "torch":
        return f"`torch` {worker[name]}, for which the model is compiled"
    needed_by = [other for other in worker if name in map(_required_name, metadata.requires(other) or ())]
    return f"`{name}` {worker[name]}, {f'which `{needed_by[0]}` needs' if needed_by else 'with which Marina serves'}"


def _required_name(requirement: str) -> str | None:
    """The name in a requirement of a distribution; None if it is one of an extra."""
    return None if "extra ==" in requirement else canonicalize_name(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def _describe(site: Path, name: str, version: str, text: str) -> None:
    """Puts the description of a distribution into an environment, but not its files."""
    described = site / f"{name.replace('-', '_')}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(text, encoding="utf-8")
    (described / "INSTALLER").write_text("marina\n", encoding="utf-8")


def _pin(entry: dict[str, Any]) -> Wheel:
    """One distribution of pip's report."""
    url = urlsplit(entry["download_info"]["url"])
    by_url = entry["is_direct"] and url.scheme != "file"
    return Wheel(
        name=entry["metadata"]["name"],
        version=entry["metadata"]["version"],
        file=unquote(url.path).rpartition("/")[2],
        sha256=entry["download_info"]["archive_info"]["hashes"]["sha256"],
        url=url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl() if by_url else None,
    )
