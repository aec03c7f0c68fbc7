"""What a spec adds to rendered objects: fields of the pod, and patches. Manifests, verification, deployment and
rollback all get the objects as they are after it."""

from k8s.extending.owned import Owned, owned_changes, summarise_patches
from k8s.extending.patches import extend

__all__ = ["Owned", "extend", "owned_changes", "summarise_patches"]
