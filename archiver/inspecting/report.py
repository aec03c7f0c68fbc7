"""The report of `inspect`, as text for a person and as data."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marina.archiver.inspecting.pickles import Pickle
from marina.config.errors import printable
from marina.config.record import Record


@dataclass(frozen=True)
class Report:
    """The findings of `inspect`. The archive is `sound` if its files are the recorded ones and loading them runs
    nothing beyond a handler's usual work."""

    mar: str
    sha256: str
    bytes: int
    manifest: dict[str, Any]
    record: Record | None
    files: dict[str, int]
    damage: tuple[str, ...]
    pickles: tuple[Pickle, ...]
    code: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged, no pickle does more than create tensors, and no code needs to be reviewed."""
        return not self.damage and not self.code and not any(pickle.runs_code for pickle in self.pickles)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for `--json`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["record"] = self.record.model_dump(mode="json", by_alias=True) if self.record else None
        data["pickles"] = [dataclasses.asdict(pickle) for pickle in self.pickles]
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
        for name, size in self.files.items():
            yield f"  {size:>12,}  {name}"
        for pickle in self.pickles:
            danger = f"RUNS CODE: {'; '.join(pickle.reasons)}" if pickle.runs_code else "tensors only"
            yield f"pickle     {pickle.file}: {danger}, imports {', '.join(pickle.imports) or 'nothing'}"
        yield from (f"CODE       {code}" for code in self.code)
        yield from (f"DAMAGED    {damage}" for damage in self.damage)
        yield "sound" if self.sound else "NOT SOUND"
