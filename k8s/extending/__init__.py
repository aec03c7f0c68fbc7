"""What a spec adds to rendered objects: fields of the pod, and patches. Manifests, verification, deployment and
rollback all get the objects as they are after it."""

from k8s.extending.patches import extend

__all__ = ["extend"]
