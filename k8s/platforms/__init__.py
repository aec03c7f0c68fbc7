"""The same objects for platforms other than kubectl, as a Helm chart or a KServe InferenceService, and the check
whether committed files still match what the spec renders."""

from marina.k8s.platforms.formats import diff_folder, write_format

__all__ = ["diff_folder", "write_format"]
