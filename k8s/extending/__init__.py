"""Applies what a spec adds to the rendered objects: fields of the pod, and patches. Manifests, verification, deployment
and rollback all work with the extended objects."""

from marina.k8s.extending.derived_fields import PatchedField, find_patched_fields, summarise_patches
from marina.k8s.extending.patches import extend, read_patch

__all__ = ["PatchedField", "extend", "find_patched_fields", "read_patch", "summarise_patches"]
