"""Two modules know `marina.json`: `config` writes it, and `handlers` reads it without pydantic."""

from dataclasses import fields

from config.record import RECORD, SCHEMA
from config.record import Record as Written
from handlers.record import RECORD_FILE
from handlers.record import SCHEMA as READ_SCHEMA
from handlers.record import PackedRecord as Read


def test_workers_read_the_file_and_the_schema_that_the_packager_writes() -> None:
    assert (RECORD_FILE, READ_SCHEMA) == (RECORD, SCHEMA)


def test_workers_read_no_field_that_the_packager_does_not_write() -> None:
    assert {field.name for field in fields(Read)} <= set(Written.model_fields)
