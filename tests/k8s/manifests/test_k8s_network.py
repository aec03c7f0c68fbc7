"""Who may reach the pods, and what pods may reach."""

import json
from typing import Any

import pytest
import yaml
from k8s_plans import planned, the_only

from marina.k8s.manifests.config_map import config_name


def test_the_network_policy_names_the_clients_of_every_port() -> None:
    policy = the_only(planned({"kubernetes.network.clients": ["shop"]}), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    assert by_port[8080] == [{"podSelector": {}}, namespace]
    assert "monitoring" in json.dumps(by_port[8090])


def test_a_loader_can_reach_its_store_and_dns_but_not_the_machines_credentials() -> None:
    policy = the_only(planned({"kubernetes.model": {"url": "https://store.local:9443/m.mar"}}), "NetworkPolicy")["spec"]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [9443, 53, 53]
    assert policy["egress"][0]["to"][0]["ipBlock"] == {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}
    only = {"kubernetes.model": {"url": "http://store.local/m.mar"}, "kubernetes.network.egress": ["10.1.0.0/16:80"]}
    policy = the_only(planned(only), "NetworkPolicy")["spec"]
    assert [block["ipBlock"]["cidr"] for block in policy["egress"][0]["to"]] == ["10.1.0.0/16"]


@pytest.mark.parametrize(
    ("redis", "peer", "port"),
    [
        ("redis://cache", {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "marina"}}}, 6379),
        (
            "redis://cache.tools.svc:6380/2",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tools"}}},
            6380,
        ),
        ("rediss://me@10.0.0.7", {"ipBlock": {"cidr": "10.0.0.7/32"}}, 6379),
        ("redis://[fd00::7]:7000", {"ipBlock": {"cidr": "fd00::7/128"}}, 7000),
        ("rediss://cache.cloud.example", {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}, 6379),
    ],
)
def test_pods_can_reach_dns_and_the_redis_in_the_spec(redis: str, peer: dict[str, Any], port: int) -> None:
    policy = the_only(planned({"serving.cache": {"redis": redis}}), "NetworkPolicy")["spec"]
    assert policy["egress"][0]["to"][0] == peer
    assert [each["port"] for rule in policy["egress"] for each in rule["ports"]] == [port, 53, 53]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://collector.watch:4318", 4318), ("https://collector.watch", 443), ("http://collector.watch/otlp", 80)],
)
def test_pods_can_reach_the_collector_of_traces(endpoint: str, port: int) -> None:
    policy = the_only(planned({"tracing": {"endpoint": endpoint}}), "NetworkPolicy")["spec"]
    assert policy["egress"][0]["ports"] == [{"port": port, "protocol": "TCP"}]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}} in policy["egress"][0]["to"]


def test_a_redis_whose_name_may_be_a_service_or_public_is_reached_as_both() -> None:
    policy = the_only(planned({"serving.cache": {"redis": "redis://redis.cache"}}), "NetworkPolicy")["spec"]
    assert [list(peer) for peer in policy["egress"][0]["to"]] == [["ipBlock"], ["ipBlock"], ["namespaceSelector"]]
    assert policy["egress"][0]["to"][2]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "cache"


@pytest.mark.parametrize(
    ("url", "peer"),
    [
        (
            "http://minio.storage.svc:9000/m.mar",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}},
        ),
        ("http://10.0.0.9:9000/m.mar", {"ipBlock": {"cidr": "10.0.0.9/32"}}),
        ("http://models:9000/m.mar", {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}),
    ],
)
def test_a_loader_can_reach_a_store_inside_the_cluster(url: str, peer: dict[str, Any]) -> None:
    rule = the_only(planned({"kubernetes.model": {"url": url}}), "NetworkPolicy")["spec"]["egress"][0]
    assert (rule["to"][0], rule["ports"][0]["port"]) == (peer, 9000)


def test_an_egress_in_the_spec_replaces_the_derived_one_for_redis() -> None:
    changes = {"serving.cache": {"redis": "redis://cache.example:7000"}}
    policy = the_only(planned(changes | {"kubernetes.network.egress": ["10.1.0.0/16:7000"]}), "NetworkPolicy")["spec"]
    assert [rule["to"][0]["ipBlock"]["cidr"] for rule in policy["egress"][:-1]] == ["10.1.0.0/16"]
    policy = the_only(planned(changes | {"kubernetes.network.egress": ["10.1.0.0/16:443"]}), "NetworkPolicy")["spec"]
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [443, 7000, 53]


def test_pods_can_reach_the_small_model_and_know_its_address() -> None:
    tales = {"source": "hf:../tales/model", "handler": "text", "compile": "eager"}
    objects = planned(
        {"model": tales, "text": {"context": 256, "max_tokens": 64, "route": {"to": "small"}}, "load": {}}
    )
    (rule, _) = the_only(objects, "NetworkPolicy")["spec"]["egress"]
    assert rule["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "marina"}}}]
    assert [port["port"] for port in rule["ports"]] == [8080]
    assert yaml.safe_load(the_only(objects, "ConfigMap", config_name(objects))["data"]["spec.yaml"])["text"][
        "route"
    ] == {"to": "small"}


def test_pods_can_reach_the_redis_of_conversations() -> None:
    tales = {"source": "hf:../tales/model", "handler": "text", "compile": "eager"}
    sessions = {"redis": "redis://chats.tools.svc:7000", "ttl_s": 60}
    objects = planned(
        {
            "model": tales,
            "text": {"context": 256, "max_tokens": 64, "sessions": sessions},
            "load": {},
            "serving.cache": {"redis": "redis://chats.tools.svc:7000/2"},
        }
    )
    policy = the_only(objects, "NetworkPolicy")["spec"]
    assert [each["port"] for rule in policy["egress"] for each in rule["ports"]] == [7000, 53, 53]
    mounted = yaml.safe_load(the_only(objects, "ConfigMap", config_name(objects))["data"]["spec.yaml"])
    assert mounted["text"]["sessions"] == sessions


def test_a_cache_that_is_only_in_memory_changes_no_policy() -> None:
    assert "egress" not in the_only(planned({"serving.cache": {}}), "NetworkPolicy")["spec"]
