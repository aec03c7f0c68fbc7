"""Exports a graph, compiles its programs in parallel, and takes from a cache what was compiled before."""

from marina.archiver.compiling.artifacts import keep_only_kernels, save_program
from marina.archiver.compiling.cache import cpu_model, load_from_cache, store_in_cache
from marina.archiver.compiling.environment import quiet, reproducible_compiler, torch_threads
from marina.archiver.compiling.exporting import check_batch_sizes, export_graph, export_shape, reexport
from marina.archiver.compiling.parallel import compile_all, task_for

__all__ = [
    "check_batch_sizes",
    "compile_all",
    "cpu_model",
    "export_graph",
    "export_shape",
    "keep_only_kernels",
    "load_from_cache",
    "quiet",
    "reexport",
    "reproducible_compiler",
    "save_program",
    "store_in_cache",
    "task_for",
    "torch_threads",
]
