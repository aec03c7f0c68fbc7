"""The client of one cluster: connecting, reading, writing and watching objects, the meaning of its errors, and what it
says about its nodes, namespaces, pods and Prometheus. It knows nothing of releases."""

from marina.k8s.cluster.api_errors import ApiError, FieldConflict, grant_commands
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.endpoints import Endpoint, is_ready, read_endpoints
from marina.k8s.cluster.environment import (
    describe_capacity,
    namespace_limits,
    prometheus_selectors,
    unselected_monitors,
)
from marina.k8s.cluster.kubeconfig import connect
from marina.k8s.cluster.nodes import fitting_nodes, missing_room
from marina.k8s.cluster.pod_facts import PodFacts, read_pod_facts
from marina.k8s.cluster.reference import MANAGER, Document, Ref
from marina.k8s.cluster.watch import Mirror

__all__ = [
    "MANAGER",
    "ApiError",
    "Cluster",
    "Document",
    "Endpoint",
    "FieldConflict",
    "Mirror",
    "PodFacts",
    "Ref",
    "connect",
    "describe_capacity",
    "fitting_nodes",
    "grant_commands",
    "is_ready",
    "missing_room",
    "namespace_limits",
    "prometheus_selectors",
    "read_endpoints",
    "read_pod_facts",
    "unselected_monitors",
]
