"""From a spec to a service on Kubernetes: manifests, their verification, and what changes a cluster. It imports only
`config` of ours.

Its rooms, each of which imports only those before it: monitoring, extending, manifests, platforms, simulating,
verify, cluster, rollout.

A name is looked up when it is asked for: manifests are rendered and verified without the client of a cluster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k8s.cluster import (
        Cluster,
        Endpoint,
        PodFacts,
        connect,
        describe_capacity,
        prometheus_selectors,
        read_endpoints,
        read_pod_facts,
    )
    from k8s.manifests import (
        LoadJob,
        Plan,
        check_machine,
        load_objects,
        make_plan,
        read_load_image,
        tell,
        to_yaml,
        write_manifests,
    )
    from k8s.platforms import differences, write_form
    from k8s.rollout import (
        Placement,
        RolloutOptions,
        RolloutRecord,
        Status,
        delete,
        deploy,
        make_release,
        pod_metrics,
        read_status,
        rollback,
        run_load,
        served_packages,
    )
    from k8s.simulating import (
        RecordedComparison,
        Simulation,
        SimulationOptions,
        TrafficTrace,
        compare_recorded,
        read_recording,
        read_traffic,
        simulate,
        simulation_html,
    )
    from k8s.verify import all_rules, explain_rule, verify_folder, verify_spec

__all__ = [
    "Cluster",
    "Endpoint",
    "LoadJob",
    "Placement",
    "Plan",
    "PodFacts",
    "RecordedComparison",
    "RolloutOptions",
    "RolloutRecord",
    "Simulation",
    "SimulationOptions",
    "Status",
    "TrafficTrace",
    "all_rules",
    "check_machine",
    "compare_recorded",
    "connect",
    "delete",
    "deploy",
    "describe_capacity",
    "differences",
    "explain_rule",
    "load_objects",
    "make_plan",
    "make_release",
    "pod_metrics",
    "prometheus_selectors",
    "read_endpoints",
    "read_load_image",
    "read_pod_facts",
    "read_recording",
    "read_status",
    "read_traffic",
    "rollback",
    "run_load",
    "served_packages",
    "simulate",
    "simulation_html",
    "tell",
    "to_yaml",
    "verify_folder",
    "verify_spec",
    "write_form",
    "write_manifests",
]
_ROOMS = ("manifests", "platforms", "simulating", "verify", "cluster", "rollout")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            face = import_module(f"k8s.{room}")
            if name in face.__all__:
                return getattr(face, name)
    raise AttributeError(f"module `k8s` has no attribute `{name}`")
