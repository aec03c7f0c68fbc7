"""The report of `inspect`, as text for a person and as data."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marina.archiver.inspecting.pickles import MISSED, Pickle
from marina.config.errors import printable
from marina.config.record import Record


@dataclass(frozen=True)
class FileReport:
    """One file of the archive."""

    bytes: int
    sha256: str
    format: str


@dataclass(frozen=True)
class Report:
    """The findings of `inspect`. The archive is `sound` if its files are the recorded ones, its layout hides nothing
    and its pickles only make data; what `runs` is for a person to read."""

    mar: str
    sha256: str
    bytes: int
    manifest: dict[str, Any]
    record: Record | None
    files: dict[str, FileReport]
    damage: tuple[str, ...]
    pickles: tuple[Pickle, ...]
    dangers: tuple[str, ...]
    runs: tuple[str, ...]
    """Each file that runs when the archive is loaded, except this version's own handlers, and what it is."""
    own_handlers: int
    """The number of files that are those of this version's handlers."""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged or dangerous, and no pickle does more than create tensors and plain data."""
        return not self.damage and not self.dangers and not any(pickle.runs_code for pickle in self.pickles)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for `--json`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["record"] = self.record.model_dump(mode="json", by_alias=True) if self.record else None
        data["files"] = {name: dataclasses.asdict(file) for name, file in self.files.items()}
        data["pickles"] = [dataclasses.asdict(pickle) | {"runs_code": pickle.runs_code} for pickle in self.pickles]
        return data | {"sound": self.sound}

    def as_text(self) -> str:
        """The report for a person, with control characters in names escaped so that a terminal does not obey them."""
        return "\n".join(printable(line).replace("\n", "\\n") for line in self._lines())

    def _lines(self) -> Iterator[str]:
        model = self.manifest["model"]
        yield f"{self.mar}  {self.bytes / 1e6:.1f} MB  sha256 {self.sha256}"
        yield f"model      {model.get('modelName')} {model.get('modelVersion')}, handler {model.get('handler')}"
        if self.record is None:
            yield "record     none: Marina did not make this archive"
        else:
            record, key = self.record, self.record.key
            yield f"source     {record.source}, weights {record.weights}"
            yield f"compiled   {record.compile} {record.precision}, batches {list(record.batch_sizes)}"
            if record.lengths is not None:
                buckets = record.lengths.buckets
                padded = f"any up to {buckets[-1]}" if record.lengths.dynamic else f"padded to {list(buckets)}"
                yield f"lengths    {padded}"
            if record.code is not None:
                yield f"RUNS       the source of `{record.code.factory}` in source/{record.code.file}, in the worker"
            machine = " ".join(key.isa) or f"capability {key.capability}, CUDA {key.cuda}"
            target = "" if key.target == "native" else f" {key.target}"
            yield f"needs      torch {key.torch}, {key.device}{target}: {machine}"
            yield f"agreement  {record.agreement.text}"
        for name, file in self.files.items():
            yield f"  {file.bytes:>12,}  {file.sha256[:12]}  {file.format:<20}  {name}"
        for pickle in self.pickles:
            danger = f"MAY RUN CODE: {'; '.join(pickle.reasons)}" if pickle.runs_code else "only data"
            yield f"pickle     {pickle.file}: {danger}, imports {', '.join(pickle.imports) or 'nothing'}"
        if self.pickles:
            yield f"           (by picklescan, which does not see {MISSED})"
        if self.own_handlers:
            yield f"own code   {self.own_handlers} files are this version's own handlers"
        yield from (f"RUNS       {runs}" for runs in self.runs)
        yield from (f"DANGER     {danger}" for danger in self.dangers)
        yield from (f"DAMAGED    {damage}" for damage in self.damage)
        if self.sound and self.runs:
            yield "what RUNS when it is loaded is listed and not judged: read it first"
        yield "sound" if self.sound else "NOT SOUND"
