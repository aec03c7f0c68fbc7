"""Applies what a spec adds to the rendered objects: variables and volumes of the pods, and patches. Manifests,
verification, deployment and rollback all work with the extended objects."""

from marina.k8s.extending.extend import PatchedField, extend, find_patched_fields, summarise_patches

__all__ = ["PatchedField", "extend", "find_patched_fields", "summarise_patches"]
