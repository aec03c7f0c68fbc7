"""One cluster: how it is found, asked, written to and watched, and what its errors mean. Knows nothing of releases."""

from k8s.cluster.api_errors import ApiError, FieldConflict, grant
from k8s.cluster.cluster import Applied, Cluster
from k8s.cluster.endpoints import Endpoint, Endpoints, endpoints, is_ready
from k8s.cluster.kubeconfig import connect
from k8s.cluster.nodes import fitting
from k8s.cluster.pod_facts import PodFacts, pod_facts
from k8s.cluster.reference import MANAGER, Document, Ref
from k8s.cluster.surroundings import allocatable, namespace_limits, prometheus_labels, unselected
from k8s.cluster.watch import Mirror

__all__ = [
    "MANAGER",
    "ApiError",
    "Applied",
    "Cluster",
    "Document",
    "Endpoint",
    "Endpoints",
    "FieldConflict",
    "Mirror",
    "PodFacts",
    "Ref",
    "allocatable",
    "connect",
    "endpoints",
    "fitting",
    "grant",
    "is_ready",
    "namespace_limits",
    "pod_facts",
    "prometheus_labels",
    "unselected",
]
