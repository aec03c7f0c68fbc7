"""A graph is exported, its programs are compiled side by side, and what was compiled before is not compiled again."""

from archiver.compiling.building import prune_cache, save_program
from archiver.compiling.cache import cache_folder, keep, processor, taken_out
from archiver.compiling.exporting import export_again, export_for, trace
from archiver.compiling.side_by_side import Task, compile_all, task_for
from archiver.compiling.surroundings import quiet, reproducible_compiler, threads

__all__ = [
    "Task",
    "cache_folder",
    "compile_all",
    "export_again",
    "export_for",
    "keep",
    "processor",
    "prune_cache",
    "quiet",
    "reproducible_compiler",
    "save_program",
    "taken_out",
    "task_for",
    "threads",
    "trace",
]
