"""The two servers of a comparison: finds what `--against` names, starts or connects to each server, and pauses one
while the other is measured: even an idle server does some work, on the same cores."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import yaml

from marina.config.errors import InputError
from marina.config.load import load_spec
from marina.config.mar import open_mar
from marina.config.measured import Objective
from marina.config.progress import Progress
from marina.config.record import Package, file_sha256, read_package, read_record, write_text
from marina.config.spec import Spec
from marina.loadtest.comparing.comparison import Side
from marina.loadtest.measuring import process_tree
from marina.loadtest.running import (
    Session,
    TargetOptions,
    open_target,
    serve_command,
)
from marina.loadtest.sending import Generator, LoadRequest, expected_of, packaged_request, spec_request, with_samples

_ALLOWED = "a MAR, a spec, or the address of a server"
# The fields of `serving` that a package fixes, and their names in its `model-config.yaml`.
_PACKED = {
    "max_batch": "batchSize",
    "max_batch_delay_ms": "maxBatchDelay",
    "response_timeout_s": "responseTimeout",
    "startup_timeout_s": "startupTimeout",
    "queue": "jobQueueSize",
}


@dataclass(frozen=True)
class Contender:
    """One of the two servers, before it is started or connected to."""

    label: str
    spec: Spec
    package: Package | None = None
    folder: Path = Path()
    """The folder of the package's MAR."""
    url: str | None = None
    """The address of a server that is already running; None starts one."""
    supervisor: str | None = None


def find_contender(text: str, new: Contender, out: Path) -> Contender:
    """The old server, as `--against` names it. A MAR has no spec, so one is written for it below `out`."""
    if text.startswith(("http://", "https://")):
        return Contender("old", new.spec, url=text)
    file = Path(text)
    if not file.is_file():
        raise InputError(f"`--against`: got `{text}`: no such file, allowed: {_ALLOWED}")
    if file.suffix == ".mar":
        return _of_mar(file, new.spec, out)
    if file.suffix in (".yaml", ".yml"):
        return _of_spec(file, new)
    raise InputError(f"`--against`: got `{text}`, allowed: {_ALLOWED}")


def _of_mar(mar: Path, spec: Spec, out: Path) -> Contender:
    record = read_record(mar)
    package = Package(mar=mar.name, sha256=file_sha256(mar), bytes=mar.stat().st_size, record=record)
    with open_mar(mar) as archive:
        settings = yaml.safe_load(archive.read("model-config.yaml"))
    data = spec.model_dump(mode="json", exclude_unset=True)
    data |= {"name": record.name, "version": record.version}
    packed = {field: settings[key] for field, key in _PACKED.items() if key in settings}
    data["serving"] = data.get("serving", {}) | packed | {"workers": record.workers, "threads": record.threads}
    data["serving"]["device"] = record.device
    if (adopted := record.archive) is not None:
        kept = {"decode_requests": spec.model.decode_requests} if spec.model.adopted else {}
        named = adopted.model_dump(mode="json", include={"name", "version", "envelope"}, exclude_none=True)
        data["model"] = {"source": record.source, "handler": record.handler, **named, **kept}
        data["load"] = {"sample": record.sample.file, "content_type": record.sample.content_type} | data.get("load", {})
        data["serving"].pop("cache", None)
    else:
        data["model"] |= {"precision": record.precision, "compile": record.compile}
    if record.text is None and adopted is None:
        data["model"]["batch_sizes"] = [*record.batch_sizes]
    elif record.text is not None:
        del data["serving"]["max_batch"]
        data["serving"]["queue"] = record.text.waiting
        data["text"] = data.get("text", {}) | {"slots": record.text.slots}
    file = out / "old" / "spec.yaml"
    write_text(file, yaml.safe_dump(data, sort_keys=False))
    return Contender("old", load_spec(file, files=False), package, mar.parent)


def _of_spec(file: Path, new: Contender) -> Contender:
    spec = load_spec(file, files=False)
    folder = new.folder.parent / spec.name
    if folder.resolve() == new.folder.resolve() and file.resolve() != new.spec.file.resolve():
        text = f"`--against`: {file} and {new.spec.file} are both packaged into {folder}, so only one of them is there"
        hint = f"cp {quote(str(folder))}/model.mar old.mar before packaging, then --against old.mar"
        raise InputError(text, hint=hint)
    return Contender("old", spec, read_package(folder), folder)


class OpenedSide(NamedTuple):
    """A server that is up, with its session and its entry in the record."""

    session: Session
    side: Side


@contextmanager
def open_side(
    side: Contender,
    request_of: Contender,
    where: TargetOptions,
    *,
    objective: Objective,
    timeout_s: float,
    generator: Generator,
    quiet: bool,
) -> Iterator[OpenedSide]:
    """Starts or connects to the server of one side. Both sides get the same requests, from the same generator."""
    progress = Progress(quiet=quiet)
    mar = side.folder / side.package.mar if side.package else None
    command = [*(where.command or serve_command(side.spec.file)), "--mar", str(mar)]
    folder = where.out / side.label
    of_side = replace(where, url=side.url, supervisor=side.supervisor, out=folder, command=command)
    with ExitStack() as stack:
        place = f"the {side.label} server"
        with progress.step(f"start {place}" if side.url is None else f"find {place}, {side.url}"):
            option = "--url" if side.label == "new" else "--against"
            target = stack.enter_context(open_target(side.spec, of_side, option))
        request = where.addressed(_request(side, request_of, target.url))
        # For a server that was not started here it is enough that its package stays the same.
        any_package = where.any_package or side.package is None
        where = replace(where, any_package=any_package)
        session = Session(target, request, side.package, objective, 1, timeout_s, where, progress, generator)
        identity = session.identify()
        record = side.package.record if side.package else None
        described = Side(
            name=record.name if record else side.spec.name,
            version=record.version if record else "unknown",
            spec=None if side.url else str(side.spec.file),
            url=session.target.url,
            package=side.package.sha256 if side.package else identity.found if identity else None,
            started=side.url is None,
        )
        yield OpenedSide(session, described)


def _request(side: Contender, of: Contender, url: str) -> LoadRequest:
    """The request with the samples of `of`, sent to this side's URL, and checked for the structure of its answers."""
    request = packaged_request(of.package, of.folder, url) if of.package else spec_request(of.spec, url)
    record = side.package.record if side.package else of.package.record if of.package else None
    request = with_samples(request, of.spec, record)
    if side.package is None:
        return request
    path = f"{url.rstrip('/')}/predictions/{side.package.record.url_name}"
    return request.model_copy(update={"url": path, "expected": expected_of(side.package.record)})


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """Stops the processes of the server `pid` (SIGSTOP) inside the context; does nothing for None.

    If this process is killed, the kernel kills the server, paused or not (`loadtest/running/target.py`)."""
    family = [] if pid is None else [process.pid for process in process_tree(pid)]
    try:
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        # Children first: a parent that is resumed may check whether they are alive.
        for process in reversed(family):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
