"""Deploy, rollback, delete and status of a release in a cluster, and the Job of a load test."""

from marina.k8s.rollout.copy_run import copied_pod
from marina.k8s.rollout.deploy import deploy
from marina.k8s.rollout.gate import Gate
from marina.k8s.rollout.history import Placement
from marina.k8s.rollout.inference import CanaryRequest
from marina.k8s.rollout.load_run import pod_metrics, run_load, served_packages
from marina.k8s.rollout.record import RolloutOptions, RolloutRecord
from marina.k8s.rollout.release import make_release
from marina.k8s.rollout.rollback import delete, rollback
from marina.k8s.rollout.status import ServiceStatus, read_status
from marina.k8s.rollout.wait import availability

__all__ = [
    "CanaryRequest",
    "Gate",
    "Placement",
    "RolloutOptions",
    "RolloutRecord",
    "ServiceStatus",
    "availability",
    "copied_pod",
    "delete",
    "deploy",
    "make_release",
    "pod_metrics",
    "read_status",
    "rollback",
    "run_load",
    "served_packages",
]
