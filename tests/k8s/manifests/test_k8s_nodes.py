"""Nodes for a package that was compiled for the packaging machine's own CPU."""

from dataclasses import replace
from typing import Any

from k8s_plans import planned

from marina.k8s.manifests.notes import notes


def test_a_package_for_the_packaging_machine_needs_node_labels_in_the_spec() -> None:
    def noted(changes: dict[str, Any], key: dict[str, Any]) -> bool:
        plan = planned(changes)
        assert plan.package
        record = plan.package.record
        changed = record.model_copy(update={"key": record.key.model_copy(update=key)})
        plan = replace(plan, package=plan.package.model_copy(update={"record": changed}))
        return any("compiled for the packaging machine's CPU" in note.text for note in notes(plan))

    flags = {"isa": ("avx512f",)}
    assert noted({}, flags)
    assert not noted({"kubernetes.node_selector": {"cpu": "ours"}}, flags)
    assert not noted({}, {})
    assert not noted({"model.cpu_target": "x86-64-v4"}, flags)
