"""From a requirements file to pinned wheels: read, resolved by pip beside what a worker has, and looked into."""

from marina.archiver.requirements.libraries import check_loaded, hint_for_library
from marina.archiver.requirements.missing import hint_for_missing, known_library
from marina.archiver.requirements.resolving import Resolved, clear_requirements, importable, resolve

__all__ = [
    "Resolved",
    "check_loaded",
    "clear_requirements",
    "hint_for_library",
    "hint_for_missing",
    "importable",
    "known_library",
    "resolve",
]
