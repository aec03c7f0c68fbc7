"""Stages an archive: all of its files, unchanged, in a folder of the MAR, with Marina's record beside them."""

from pathlib import Path

from marina.archiver.adopting.foreign import NAMED_HANDLERS, ForeignArchive, read_foreign
from marina.archiver.inspecting import open_archive
from marina.config.errors import ArchiveError, listed
from marina.config.handler_metrics import render_metrics
from marina.config.record import Adopted, file_sha256
from marina.config.spec import Spec

# The folder in the MAR with the archive's files.
FOLDER = "archive"
METRICS = "metrics.yaml"


def stage_archive(spec: Spec, folder: Path) -> Adopted:
    """Unpacks the spec's archive into the staged folder, and returns the record's `archive`."""
    path, where = spec.path(spec.model.source), f"{spec.file}: `model.source`"
    foreign = read_foreign(path, where)
    handler = _handler(spec, foreign)
    unpack_archive(spec, folder / FOLDER)
    if spec.model.metrics:
        file = spec.path(spec.model.metrics)
        declared = render_metrics(file.read_text(encoding="utf-8"), str(file))
        (folder / METRICS).write_text(declared, encoding="utf-8")
    return Adopted(
        folder=FOLDER,
        source_sha256=None if path.is_dir() else file_sha256(path),
        handler=handler,
        name=spec.url_name,
        version=spec.url_version,
        envelope=spec.model.envelope,
        metrics=METRICS if spec.model.metrics else None,
    )


def unpack_archive(spec: Spec, folder: Path) -> None:
    """Unpacks the spec's archive into a folder."""
    with open_archive(spec.path(spec.model.source)) as archive:
        archive.unpack(folder)


def unpack_requirements(spec: Spec, folder: Path) -> Path | None:
    """Unpacks the requirements file that the spec's archive names into a folder; None if it names none."""
    with open_archive(spec.path(spec.model.source)) as archive:
        name = archive.manifest["model"].get("requirementsFile")
        if not name or name not in archive.sizes:
            return None
        file = folder / Path(name).name
        file.write_bytes(archive.read(name))
        return file


def _handler(spec: Spec, foreign: ForeignArchive) -> str:
    """The handler, as TorchServe would find it; ArchiveError if it would not."""
    handler = foreign.handler or spec.model.default_handler
    if handler is None:
        text = f"{spec.file}: `model.default_handler`: missing: `{foreign.path.name}` names no handler"
        raise ArchiveError(text, hint="add the `default_service_handler` of TorchServe's config.properties there")
    module = handler.partition(":")[0].removesuffix(".py")
    last = module.rpartition("/")[2]
    files = {f"{module}.py", f"{last}.py", f"{last}/__init__.py"}
    if last not in NAMED_HANDLERS and not files & foreign.sizes.keys():
        here = listed(name for name in foreign.sources if "/" not in name)
        text = f"{spec.file}: `model.source`: `{foreign.path.name}` names the handler `{handler}`, which is not in it"
        raise ArchiveError(f"{text}; found: {here or 'no Python file'}", hint=f"allowed also: {listed(NAMED_HANDLERS)}")
    return handler
