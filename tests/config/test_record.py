"""Two modules know `marina.json`: `config` writes it, and `handlers` reads it without pydantic."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from k8s_plans import RECORD as RECORD_DATA

from marina.config.errors import InputError
from marina.config.record import RECORD, SCHEMA, read_package, write_text
from marina.config.record import Record as Written
from marina.handlers.record import RECORD_FILE
from marina.handlers.record import SCHEMA as READ_SCHEMA
from marina.handlers.record import PackedRecord as Read


def test_workers_read_the_file_and_the_schema_that_the_packager_writes() -> None:
    assert (RECORD_FILE, READ_SCHEMA) == (RECORD, SCHEMA)


def test_workers_read_no_field_that_the_packager_does_not_write() -> None:
    assert {field.name for field in fields(Read)} <= set(Written.model_fields)


def test_the_record_of_an_older_marina_is_read() -> None:
    older = RECORD_DATA | {
        "on_mismatch": "jit",
        "image": {"height": 8, "width": 8, "max_pixels": 9, "max_decode_mb": 160},
        "sample": {"file": "sample.png", "content_type": "image/png", "more": 1},
    }
    record = Written.model_validate_json(json.dumps(older))
    assert record.image is not None
    assert (record.image.max_pixels, record.sample.file) == (9, "sample.png")


@pytest.mark.parametrize("damaged", [b"\xff\xfe", b"{", b"[]"])
def test_a_damaged_package_record_is_an_input_error(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_bytes(damaged)
    with pytest.raises(InputError, match="not a package record of this version"):
        read_package(tmp_path)


def test_on_a_full_disk_the_old_record_stays(tmp_path: Path) -> None:
    (tmp_path / "record.txt").write_text("old")
    (tmp_path / f".record.txt.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_text(tmp_path / "record.txt", "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]


def test_a_path_that_is_not_utf_8_is_written_with_replacements(tmp_path: Path) -> None:
    write_text(tmp_path / "page.html", os.fsdecode(b"m\xfcll/spec.yaml"))
    assert (tmp_path / "page.html").read_bytes() == b"m?ll/spec.yaml"


@pytest.mark.slow
def test_processes_that_write_the_same_record_never_publish_half_of_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from marina.config.record import write_json\n"
        "for _ in range(300): write_json(pathlib.Path(sys.argv[1]), {'a': sys.argv[2] * 200_000})"
    )
    file = tmp_path / "record.json"
    writers = [subprocess.Popen([sys.executable, "-c", program, str(file), letter]) for letter in "xy"]
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            assert set(json.loads(file.read_text())["a"]) in ({"x"}, {"y"})
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
