"""Strategic merge patches and JSON patches: their results and their error messages."""

import json
from typing import Any

import pytest

from marina.k8s.extending.json_patch import apply_json_patch
from marina.k8s.extending.merge_patch import MERGE_KEYS, PatchError, apply_merge_patch
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.schemas import _definitions, _validator

CONTAINERS = {"containers": [{"name": "server", "env": [{"name": "A", "value": "1"}]}, {"name": "b"}]}
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
    pytest.param({"volumes": [{"name": "v", "emptyDir": {}}]},
                 {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]},
                 {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}, id="keys that are retained"),
    pytest.param({"finalizers": ["a", "b"]}, {"finalizers": ["b", "c"]}, {"finalizers": ["a", "b", "c"]},
                 id="plain values are added"),
    pytest.param({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]},
                 id="plain values are deleted"),
    pytest.param({"ports": [{"port": 80}, {"port": 81}]}, {"ports": [{"port": 81, "name": "x"}]},
                 {"ports": [{"port": 80}, {"port": 81, "name": "x"}]}, id="ports of a Service"),
    pytest.param({"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 80, "name": "x"}]},
                 {"ports": [{"containerPort": 80, "name": "x"}]}, id="ports of a container"),
]  # fmt: skip


@pytest.mark.parametrize(("original", "patch", "result"), MERGES)
def test_a_patch_is_merged_as_kubectl_does(original: Any, patch: Any, result: Any) -> None:
    assert apply_merge_patch(original, patch, by_keys=True) == result


def test_lists_of_custom_resources_are_replaced() -> None:
    assert apply_merge_patch({"env": [{"name": "a"}]}, {"env": [{"name": "b"}]}, by_keys=False) == {
        "env": [{"name": "b"}]
    }


def test_the_merge_keys_are_those_of_kubernetes() -> None:
    """For every list in every rendered kind, compared with the schemas of the newest version of Kubernetes."""
    version = SUPPORTED_VERSIONS[-1]
    definitions = _definitions(version).contents(next(iter(_definitions(version))))["$defs"]
    seen: dict[str, set[str | None]] = {}
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
            if "merge" in field.get("x-kubernetes-patch-strategy", ""):
                seen.setdefault(name, set()).add(field.get("x-kubernetes-patch-merge-key"))
            text = json.dumps(field)
            for reference in [part.partition('"')[0] for part in text.split("/$defs/")[1:]]:
                if reference not in done and not reference.endswith("Status"):
                    done.add(reference)
                    waiting.append(definitions[reference])
    known = {name: set(keys or [None]) for name, keys in MERGE_KEYS.items()}
    assert {name: keys for name, keys in seen.items() if keys <= known.get(name, set())} == seen
    assert seen.keys() == known.keys()


# A patch that cannot be applied, and its whole message.
IMPOSSIBLE: list[Any] = [
    ({"containers": ["x"]}, "`/containers/0`: got `x`, allowed: a mapping, as the items of this list are"),
    ({"containers": [{"image": "x"}]}, "`/containers/0`: missing: `name`, the merge key of this list"),
    ({"a": {"$patch": "drop"}}, "`/a`: `$patch`: got `drop`, allowed: `delete`, `merge`, `replace`"),
    (
        {"$retainKey": []},
        "`/`: `$retainKey`: unknown directive, allowed: `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD`",
    ),
    ({"$retainKeys": "a"}, "`/`: `$retainKeys`: got `a`, allowed: a list"),
]


@pytest.mark.parametrize(("patch", "text"), IMPOSSIBLE, ids=lambda case: str(case)[:40])
def test_a_patch_that_cannot_be_merged_is_an_error_with_its_path(patch: Any, text: str) -> None:
    with pytest.raises(PatchError) as caught:
        apply_merge_patch(CONTAINERS, patch, by_keys=True)
    assert str(caught.value) == text


# From RFC 6902 and its appendix.
OPERATIONS: list[Any] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": 1}], {"foo": "bar", "baz": 1}),
    ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": "x"}], {"foo": ["a", "x", "b"]}),
    ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": "x"}], {"foo": ["a", "x"]}),
    ({"foo": ["a", "b"]}, [{"op": "remove", "path": "/foo/0"}], {"foo": ["b"]}),
    ({"foo": 1, "b": 2}, [{"op": "replace", "path": "/foo", "value": None}], {"foo": None, "b": 2}),
    ({"foo": [1, 2]}, [{"op": "replace", "path": "/foo/1", "value": 3}], {"foo": [1, 3]}),
    ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"a": [1]},
        [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/-", "value": 2}],
        {"a": [1], "b": [1, 2]},
    ),
    ({"a/b": {"m~n": 1}}, [{"op": "replace", "path": "/a~1b/m~0n", "value": 2}], {"a/b": {"m~n": 2}}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}, {"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
    ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
]


@pytest.mark.parametrize(("document", "operations", "result"), OPERATIONS, ids=lambda case: str(case)[:40])
def test_operations_follow_the_rfc(document: Any, operations: Any, result: Any) -> None:
    before = json.dumps(document)
    assert apply_json_patch(document, operations) == result
    assert json.dumps(document) == before


IMPOSSIBLE_OPERATIONS: list[Any] = [
    ([{"op": "test", "path": "/a", "value": True}], "the test failed: got `1`, tested for `True`"),
    ([{"op": "add", "path": "/b", "value": 1}, {"op": "remove", "path": "/x"}], "`1`: `/x`: there is no `x`"),
    ([{"op": "replace", "path": "/x", "value": 1}], "there is no `x`, there are `a`, `list`"),
    ([{"op": "add", "path": "/x/y", "value": 1}], "there is no `x`"),
    ([{"op": "add", "path": "/list/3", "value": 1}], "got `3` in a list of 2, allowed: 0 to 2"),
    ([{"op": "remove", "path": "/list/01"}], "got `01` in a list of 2, allowed: 0 to 1"),
    ([{"op": "add", "path": "/a/b", "value": 1}], "its parent is `1`, allowed: a mapping or a list"),
    ([{"op": "move", "from": "/list", "path": "/list/0"}], "lies inside `/list`, and nothing can be moved into itself"),
    ([{"op": "set", "path": "/a"}], "`op`: got `set`, allowed: `add`, `copy`, `move`, `remove`, `replace`, `test`"),
    ([{"op": "add", "path": "/a"}], "`value`: missing: `op: add` needs it"),
    ([{"op": "remove", "path": "a"}], "`path`: got `a`, allowed: a pointer such as `/spec/replicas`"),
    ([{"op": "remove", "path": ""}], "is the object itself, and only its parts can be patched"),
]


@pytest.mark.parametrize(("operations", "text"), IMPOSSIBLE_OPERATIONS, ids=lambda case: str(case)[:40])
def test_an_impossible_operation_is_an_error_with_its_number_and_reason(operations: Any, text: str) -> None:
    with pytest.raises(PatchError) as caught:
        apply_json_patch({"a": 1, "list": [1, 2]}, operations)
    assert text in str(caught.value)
