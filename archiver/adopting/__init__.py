"""Adopts archives that were made for TorchServe: reads what is in them, says what a pod lacks for them, and stages them
unchanged. Nothing here imports torch."""

from marina.archiver.adopting.failures import failure_hint
from marina.archiver.adopting.foreign import ForeignArchive, read_foreign
from marina.archiver.adopting.stage import stage_archive, unpack_archive

__all__ = ["ForeignArchive", "failure_hint", "read_foreign", "stage_archive", "unpack_archive"]
