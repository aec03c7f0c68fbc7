"""Reads the records that other stages left as JSON in a build folder."""

import hashlib
import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from config.errors import InputError


class RecordPart(BaseModel):
    """The part of a record that manifests need: its fields must be present, other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StageRecord(RecordPart):
    """A record with a file of its own."""

    sha256: str
    """The hash of the file."""


_Record = TypeVar("_Record", bound=StageRecord)


def read_stage_record(file: Path, model: type[_Record], kind: str, hint: str) -> _Record | None:
    """Reads a record of a kind such as `image`; None if there is no such file. Raises InputError with the hint if it
    cannot be read, or has another form or schema."""
    schema = f"marina.{kind}/1"
    try:
        content = file.read_bytes()
        data = json.loads(content)
        if data.get("schema") != schema:
            raise InputError(f"{file}: got schema `{data.get('schema')}`, allowed: `{schema}`", hint=hint)
        return model.model_validate({**data, "sha256": hashlib.sha256(content).hexdigest()})
    except FileNotFoundError:
        return None
    except OSError as err:
        raise InputError(f"{file}: cannot be read: {err.strerror}", hint=hint) from err
    except (ValueError, AttributeError, TypeError) as err:
        raise InputError(f"{file}: not an {kind} record of this version", hint=hint) from err
