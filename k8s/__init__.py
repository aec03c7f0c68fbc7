"""From a spec to a service on Kubernetes: renders manifests, verifies them and rolls them out to a cluster. Of Marina's
packages it imports only `config`.

Its rooms, each of which imports only the ones before it: monitoring, extending, manifests, platforms, simulating,
verify, cluster, rollout.

Names are imported on first use, so that rendering and verifying manifests never loads the cluster's client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k8s.cluster import (
        Cluster,
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
        check_evidence,
        load_objects,
        make_plan,
        next_steps,
        read_load_image,
        summary_text,
        to_yaml,
        write_manifests,
    )
    from k8s.platforms import diff_folder, write_format
    from k8s.rollout import (
        Placement,
        RolloutOptions,
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
        SimulationOptions,
        compare_recorded,
        read_recording,
        read_traffic,
        simulate,
        simulation_html,
    )
    from k8s.verify import all_rules, explain_rule, verify_folder, verify_spec

_ROOMS = ("manifests", "platforms", "simulating", "verify", "cluster", "rollout")


def __getattr__(name: str) -> Any:
    # Python asks for names such as `__path__`, and these must not load all rooms.
    for room in () if name.startswith("_") else _ROOMS:
        if hasattr(face := import_module(f"k8s.{room}"), name):
            return getattr(face, name)
    raise AttributeError(f"module `k8s` has no attribute `{name}`")
