"""Strategic merge patches: their results and their error messages."""

import json
from typing import Any

import pytest

from marina.k8s.extending.merge_patch import MERGE_KEYS, PatchError, apply_merge_patch
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.schemas import _definitions, _validator

CONTAINERS = {"containers": [{"name": "server", "env": [{"name": "A", "value": "1"}]}, {"name": "b"}]}
ALERTS = {"groups": [{"name": "a", "rules": [{"alert": "X", "expr": "1"}, {"alert": "Y"}]}]}
# An object, a strategic merge patch, and the result on the API server.
MERGES: list[Any] = [
    pytest.param({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}, id="mappings"),
    pytest.param({"a": 1, "b": 2}, {"b": None}, {"a": 1}, id="null deletes"),
    pytest.param({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="null in what is new"),
    pytest.param({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]},
                 id="a list without a merge key is replaced"),
    pytest.param(CONTAINERS, {"containers": [{"name": "b", "image": "x"}]},
                 {"containers": [CONTAINERS["containers"][0], {"name": "b", "image": "x"}]}, id="an item by its key"),
    pytest.param(CONTAINERS, {"containers": [{"name": "c"}]},
                 {"containers": [{"name": "c"}, *CONTAINERS["containers"]]}, id="a new item comes first"),
    pytest.param(CONTAINERS, {"containers": [{"name": "b", "image": "x"}, {"name": "c"}]},
                 {"containers": [CONTAINERS["containers"][0], {"name": "b", "image": "x"}, {"name": "c"}]},
                 id="the order of the object, then that of the patch"),
    pytest.param(CONTAINERS, {"containers": [{"name": "server", "env": [{"name": "A", "value": "2"}, {"name": "B"}]}]},
                 {"containers": [{"name": "server", "env": [{"name": "A", "value": "2"}, {"name": "B"}]}, {"name": "b"}]},
                 id="lists in lists"),
    pytest.param(CONTAINERS, {"containers": [{"name": "b", "$patch": "delete"}]},
                 {"containers": [CONTAINERS["containers"][0]]}, id="an item is deleted"),
    pytest.param(CONTAINERS, {"containers": [{"name": "x"}, {"$patch": "replace"}]}, {"containers": [{"name": "x"}]},
                 id="a list is replaced"),
    pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {"a": {"d": 3}}, id="a mapping is replaced"),
    pytest.param({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {}, id="a mapping is deleted"),
    pytest.param({"ports": [{"port": 80}, {"port": 81}]}, {"ports": [{"port": 81, "name": "x"}]},
                 {"ports": [{"port": 80}, {"port": 81, "name": "x"}]}, id="ports of a Service"),
    pytest.param({"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 80, "name": "x"}]},
                 {"ports": [{"containerPort": 80, "name": "x"}]}, id="ports of a container"),
    pytest.param(ALERTS, {"groups": [{"name": "a", "rules": [{"alert": "Y", "for": "5m"}]}]},
                 {"groups": [{"name": "a", "rules": [{"alert": "X", "expr": "1"}, {"alert": "Y", "for": "5m"}]}]},
                 id="one alert of a PrometheusRule"),
    pytest.param({"rules": [{"matches": 1}]}, {"rules": [{"matches": 2}]}, {"rules": [{"matches": 2}]},
                 id="rules of a route"),
]  # fmt: skip


@pytest.mark.parametrize(("original", "patch", "result"), MERGES)
def test_a_patch_is_merged_as_kubectl_does(original: Any, patch: Any, result: Any) -> None:
    before = json.dumps(original)
    assert apply_merge_patch(original, patch) == result
    assert json.dumps(original) == before


def test_the_merge_keys_are_those_of_kubernetes() -> None:
    """For every list in every rendered kind, compared with the schemas of the newest version of Kubernetes."""
    version = SUPPORTED_VERSIONS[-1]
    definitions = _definitions(version).contents(next(iter(_definitions(version))))["$defs"]
    seen: dict[str, set[str]] = {}
    waiting = [
        _validator(kind, api, version).schema  # type: ignore[union-attr]
        for kind, api in (("Deployment", "apps/v1"), ("Service", "v1"), ("ServiceAccount", "v1"), ("ConfigMap", "v1"),
                          ("Namespace", "v1"), ("NetworkPolicy", "networking.k8s.io/v1"),
                          ("PodDisruptionBudget", "policy/v1"), ("HorizontalPodAutoscaler", "autoscaling/v2"))
    ]  # fmt: skip
    done = set()
    while waiting:
        schema = waiting.pop()
        for name, field in schema.get("properties", {}).items():
            # Lists of plain values, such as finalizers, have no key and are replaced.
            if "x-kubernetes-patch-merge-key" in field and "merge" in field["x-kubernetes-patch-strategy"]:
                seen.setdefault(name, set()).add(field["x-kubernetes-patch-merge-key"])
            text = json.dumps(field)
            for reference in [part.partition('"')[0] for part in text.split("/$defs/")[1:]]:
                if reference not in done and not reference.endswith("Status"):
                    done.add(reference)
                    waiting.append(definitions[reference])
    known = {name: set(keys) for name, keys in MERGE_KEYS.items() if name not in ("groups", "rules")}
    assert all(keys <= known.get(name, set()) for name, keys in seen.items())
    assert seen.keys() == known.keys()


# A patch that cannot be applied, and its whole message.
IMPOSSIBLE: list[Any] = [
    ({"containers": ["x"]}, "`/containers/0`: got `x`, allowed: a mapping with `name`, the list's merge key"),
    ({"containers": [{"image": "x"}]},
     "`/containers/0`: got `{'image': 'x'}`, allowed: a mapping with `name`, the list's merge key"),
    ({"containers": [{"name": ["a"]}]}, "`/containers/0/name`: got `['a']`, allowed: the merge key of this list"),
    ({"a": {"$patch": "drop"}}, "`/a`: `$patch`: got `drop`, allowed: `delete`, `replace`"),
    ({"$retainKeys": []}, "`/`: `$retainKeys`: unknown directive, allowed: `$patch`"),
    ({"containers": [{"name": "b", "$setElementOrder/env": []}]},
     "`/containers/b`: `$setElementOrder/env`: unknown directive, allowed: `$patch`"),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "text"), IMPOSSIBLE, ids=lambda case: str(case)[:40])
def test_a_patch_that_cannot_be_merged_is_an_error_with_its_path(patch: Any, text: str) -> None:
    with pytest.raises(PatchError) as caught:
        apply_merge_patch(CONTAINERS, patch)
    assert str(caught.value) == text
