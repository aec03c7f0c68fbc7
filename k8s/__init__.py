"""From a spec to a service on Kubernetes: renders manifests, verifies them and rolls them out to a cluster. Of Marina's
packages it imports only `config`.

Its rooms, each of which imports only the ones before it: monitoring, extending, manifests, platforms, simulating,
verify, cluster, rollout.

Names are imported on first use, so that rendering and verifying manifests never loads the cluster's client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marina.k8s.cluster import (
        Cluster,
        Endpoint,
        PodFacts,
        connect,
        describe_capacity,
        prometheus_selectors,
        read_endpoints,
        read_pod_facts,
    )
    from marina.k8s.manifests import (
        LoadJob,
        Plan,
        check_evidence,
        load_objects,
        make_plan,
        next_steps,
        read_load_image,
        summary_text,
        to_yaml,
        write_manifests,
    )
    from marina.k8s.platforms import diff_folder, write_format
    from marina.k8s.rollout import (
        Placement,
        RolloutOptions,
        RolloutRecord,
        ServiceStatus,
        delete,
        deploy,
        make_release,
        pod_metrics,
        read_status,
        rollback,
        run_load,
        served_packages,
    )
    from marina.k8s.simulating import (
        Simulation,
        SimulationOptions,
        TrafficTrace,
        read_traffic,
        simulate,
        simulation_html,
    )
    from marina.k8s.verify import all_rules, explain_rule, verify_folder, verify_spec

__all__ = [
    "Cluster",
    "Endpoint",
    "LoadJob",
    "Placement",
    "Plan",
    "PodFacts",
    "RolloutOptions",
    "RolloutRecord",
    "ServiceStatus",
    "Simulation",
    "SimulationOptions",
    "TrafficTrace",
    "all_rules",
    "check_evidence",
    "connect",
    "delete",
    "deploy",
    "describe_capacity",
    "diff_folder",
    "explain_rule",
    "load_objects",
    "make_plan",
    "make_release",
    "next_steps",
    "pod_metrics",
    "prometheus_selectors",
    "read_endpoints",
    "read_load_image",
    "read_pod_facts",
    "read_status",
    "read_traffic",
    "rollback",
    "run_load",
    "served_packages",
    "simulate",
    "simulation_html",
    "summary_text",
    "to_yaml",
    "verify_folder",
    "verify_spec",
    "write_format",
    "write_manifests",
]
_ROOMS = ("manifests", "platforms", "simulating", "verify", "cluster", "rollout")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            face = import_module(f"marina.k8s.{room}")
            if name in face.__all__:
                return getattr(face, name)
    raise AttributeError(f"module `k8s` has no attribute `{name}`")
