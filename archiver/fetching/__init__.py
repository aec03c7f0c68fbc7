"""Fetches what lies elsewhere: its version is asked for once, then the files of that version come into a cache.

    Remote (config) → look: version, files and how to get each → files in the cache → Spec with their paths

`fetch` does that for every kind of place; `hub`, `mlflow`, `oci` and `stores` each look at one. Everything after it
sees files of this machine. Imports no torch: `manifests --check` asks for versions, too."""

from marina.archiver.fetching.fetch import fetch_remote, fetch_sources, pins_of
from marina.archiver.fetching.moved import moved_sources

__all__ = ["fetch_remote", "fetch_sources", "moved_sources", "pins_of"]
