"""Adopts archives that were made for TorchServe: reads what is in them, says what a pod lacks for them, and stages them
unchanged. Nothing here imports torch."""

from marina.archiver.adopting.failures import failure_hint
from marina.archiver.adopting.foreign import ForeignArchive, read_foreign
from marina.archiver.adopting.imports import missing_in_pod
from marina.archiver.adopting.registration import Properties, Registration, find_registration
from marina.archiver.adopting.stage import FOLDER, stage_archive, unpack_archive, unpack_requirements

__all__ = [
    "FOLDER",
    "ForeignArchive",
    "Properties",
    "Registration",
    "failure_hint",
    "find_registration",
    "missing_in_pod",
    "read_foreign",
    "stage_archive",
    "unpack_archive",
    "unpack_requirements",
]
