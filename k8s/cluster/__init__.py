"""The client of one cluster: connecting, reading and writing objects, the meaning of its errors, and what it says about
its pods and its Prometheus. It knows nothing of releases."""

from marina.k8s.cluster.api_errors import ApiError, FieldConflict
from marina.k8s.cluster.client import MANAGER, Cluster, Document, Ref
from marina.k8s.cluster.execution import execute
from marina.k8s.cluster.kubeconfig import connect
from marina.k8s.cluster.pods import Endpoint, PodFacts, is_ready, label_text, read_endpoints, read_pod_facts
from marina.k8s.cluster.prometheus import prometheus_selectors, unselected_monitors

__all__ = [
    "MANAGER",
    "ApiError",
    "Cluster",
    "Document",
    "Endpoint",
    "FieldConflict",
    "PodFacts",
    "Ref",
    "connect",
    "execute",
    "is_ready",
    "label_text",
    "prometheus_selectors",
    "read_endpoints",
    "read_pod_facts",
    "unselected_monitors",
]
