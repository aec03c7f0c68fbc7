"""Model stores: only the loader gets the credentials in a Secret, and downloads can be cached."""

import json
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, SHA256, planned
from specs import digits_spec

from marina.config.errors import SpecError
from marina.k8s.manifests.objects import render_objects
from marina.k8s.verify import verify


def pod(store: dict[str, Any], **others: Any) -> dict[str, Any]:
    plan = planned({"kubernetes.model": store, **others}, evidence=EVIDENCE, image=IMAGE)
    spec: dict[str, Any] = render_objects(plan)["40-deployment.yaml"][0]["spec"]["template"]["spec"]
    return spec


def egress(store: dict[str, Any]) -> list[int]:
    plan = planned({"kubernetes.model": store})
    rules = render_objects(plan)["30-network-policy.yaml"][0]["spec"]["egress"]
    return [port["port"] for rule in rules for port in rule["ports"] if port["port"] != 53]


@pytest.mark.parametrize("url", ["s3://models/digits/1.0.mar", "gs://models/1.0.mar", "https://store.local/1.0.mar"])
def test_only_the_loader_mounts_the_keys_of_a_secret(url: str) -> None:
    inside = pod({"url": url, "secret": "store"})
    (loader,), (server,) = inside["initContainers"], inside["containers"]
    assert loader["args"][-4:] == ["--from", url, "--secret", "/store"]
    assert {"name": "store", "secret": {"secretName": "store"}} in inside["volumes"]
    assert {"name": "store", "mountPath": "/store", "readOnly": True} in loader["volumeMounts"]
    assert "store" not in [mount["name"] for mount in server["volumeMounts"]]
    assert egress({"url": url}) == [443]


def test_a_presigned_address_is_in_no_object() -> None:
    inside = pod({"secret": "address"})
    (loader,) = inside["initContainers"]
    assert loader["args"] == ["/loaded/model.mar", "--sha256", SHA256, "--from-environment", "--secret", "/store"]
    assert egress({"secret": "address"}) == [443]


def test_a_cache_is_written_by_the_loader_and_read_by_the_server() -> None:
    inside = pod({"url": "s3://models/digits.mar", "cache": "mars"})
    (loader,), (server,) = inside["initContainers"], inside["containers"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "mars"}} in inside["volumes"]
    mounts = [next(mount for mount in each["volumeMounts"] if mount["name"] == "model") for each in (loader, server)]
    assert [mount.get("readOnly") for mount in mounts] == [None, True]
    # One file for each package, which the next pod finds again.
    kept = f"/loaded/{SHA256}.mar"
    assert loader["args"][0] == kept
    assert kept in server["args"]


def test_a_folder_of_the_node_is_a_cache_if_the_namespace_allows_it() -> None:
    store = {"url": "s3://models/digits.mar", "cache": "/var/cache/marina"}
    changes = {"kubernetes.create_namespace": False}
    volumes = pod(store, **changes)["volumes"]
    assert {"name": "model", "hostPath": {"path": "/var/cache/marina", "type": "Directory"}} in volumes
    plan = planned({"kubernetes.model": store, **changes}, evidence=EVIDENCE, image=IMAGE)
    # Of a namespace that is not among the objects nobody knows what it allows.
    assert verify(render_objects(plan), plan, ["1.37"]) == []


def test_a_cache_outside_the_pod_needs_no_storage_of_the_pod() -> None:
    amounts = [
        pod({"url": "s3://models/digits.mar", **more})["containers"][0]["resources"]["limits"]["ephemeral-storage"]
        for more in ({}, {"cache": "mars"})
    ]
    assert amounts[0] != amounts[1]


REFUSED: list[Any] = [
    ({"url": "ftp://store/x"}, "without a query; a presigned one goes into `secret` as `MODEL_URL`"),
    ({"url": "s3://bucket"}, "got `s3://bucket`, allowed: an address"),
    ({}, "allowed: exactly one of `claim`, `image`, `url`, or `secret` alone with `MODEL_URL` in it"),
    ({"claim": "c", "secret": "s"}, "`kubernetes.model.secret`: got `s`, but nothing is downloaded"),
    ({"claim": "c", "cache": "d"}, "`kubernetes.model.cache`: "),
    ({"url": "https://s/x", "cache": {}}, "got `{}`, allowed: text"),
    ({"url": "https://s/x", "cache": "Var"}, "allowed: the name of a claim, or a path that begins with `/`"),
    ({"url": "https://s/x", "cache": "/var"}, "but the rendered Namespace forbids `hostPath`"),
]


@pytest.mark.parametrize(("store", "text"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_wrong_store_is_refused(store: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        digits_spec({"kubernetes.model": store})
    assert text in str(caught.value)


def test_no_message_repeats_the_secret_in_an_address() -> None:
    for url in ("s3://key:hush@bucket/x", "https://s/x?X-Amz-Signature=hush", "https://hush@s/x#hush"):
        with pytest.raises(SpecError) as caught:
            digits_spec({"kubernetes.model": {"url": url}})
        assert "hush" not in json.dumps([vars(problem) for problem in caught.value.problems])
