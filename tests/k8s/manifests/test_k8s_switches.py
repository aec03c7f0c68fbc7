from typing import Any

import pytest
from k8s_plans import EVIDENCE, GPU, planned

from marina.k8s.manifests.objects import render_objects

POD = "40-deployment.yaml:spec.template.spec"
EDGE = {"gateway": "e/p"}
REQUIRED = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.0.matchExpressions"
NFD = "feature.node.kubernetes.io/cpu-cpuid."


def lost(seconds: int) -> list[dict[str, Any]]:
    """The tolerations by which a pod leaves a node that does not answer."""
    names = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [{"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": seconds} for key in names]


# A field with its value, and its effect on the manifests: a place and the value there; None if there must be none.
SWITCHES: list[Any] = [
    ({"kubernetes.create_namespace": False}, "00-namespace.yaml", None),
    ({"kubernetes.network.policy": False}, "30-network-policy.yaml", None),
    ({"kubernetes.namespace": "shop"}, "50-service.yaml:metadata.namespace", "shop"),
    ({"kubernetes.registry": "r.local/x"}, f"{POD}.containers.0.image", "r.local/x/digits:1.0"),
    ({"kubernetes.pull_secrets": ["key"]}, f"{POD}.imagePullSecrets", [{"name": "key"}]),
    ({"kubernetes.resources.cpu": 3}, f"{POD}.containers.0.resources.limits.cpu", "3"),
    ({"kubernetes.resources.memory": "3Gi"}, f"{POD}.containers.0.resources.requests.memory", "3Gi"),
    (GPU | {"kubernetes.resources.gpu_resource": "nvidia.com/mig-1g.10gb"},
     f"{POD}.containers.0.resources.limits.nvidia~com/mig-1g~10gb", "1"),
    ({"kubernetes.node_selector": {"pool": "fast"}}, f"{POD}.nodeSelector", {"pool": "fast"}),
    ({"model.cpu_target": "x86-64-v3"}, f"{POD}.nodeSelector",
     {"kubernetes.io/arch": "amd64", f"{NFD}AVX2": "true", f"{NFD}FMA3": "true"}),
    ({"model.cpu_target": "x86-64-v4"}, f"{POD}.nodeSelector.{NFD.replace('.', '~')}AVX512VL", "true"),
    ({"model.cpu_target": "amx"}, f"{POD}.nodeSelector.{NFD.replace('.', '~')}AMXINT8", "true"),
    ({"model.cpu_target": "amx", "kubernetes.node_selector": {"cpu": "amx"}}, f"{POD}.nodeSelector",
     {"kubernetes.io/arch": "amd64", "cpu": "amx"}),
    ({"kubernetes.tolerations": ["dedicated=gpu:NoExecute"]}, f"{POD}.tolerations",
     [{"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoExecute"}, *lost(30)]),
    ({"kubernetes.tolerations": ["spot"]}, f"{POD}.tolerations", [{"key": "spot", "operator": "Exists"}, *lost(30)]),
    ({"kubernetes.node_loss_s": 5}, f"{POD}.tolerations", lost(5)),
    ({"kubernetes.spot": {"provider": "gke"}}, f"{POD}.tolerations",
     [{"effect": "NoSchedule", "key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}, *lost(30)]),
    ({"kubernetes.spot": {"provider": "aks"}}, f"{POD}.tolerations.0.key", "kubernetes.azure.com/scalesetpriority"),
    ({"kubernetes.spot": {"provider": "eks"}}, f"{POD}.affinity.{REQUIRED}", [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand", "spot"]},
        {"key": "capacity-spread", "operator": "Exists"}]),
    ({"kubernetes.spot": {"provider": "gke"}}, f"{POD}.affinity.{REQUIRED}",
     [{"key": "capacity-spread", "operator": "Exists"}]),
    ({"kubernetes.spot": {"provider": "gke", "on_demand": "0%"}}, f"{POD}.affinity.{REQUIRED}",
     [{"key": "cloud.google.com/gke-spot", "operator": "In", "values": ["true"]}]),
    ({"kubernetes.spot": {"provider": "eks"}}, f"{POD}.topologySpreadConstraints.1.topologyKey", "capacity-spread"),
    ({"kubernetes.spot": {"provider": "eks", "pods_per_node": 2}}, f"{POD}.topologySpreadConstraints.2.maxSkew", 2),
    ({"scaling.scale_down_window_s": 120},
     "70-autoscaler.yaml:spec.behavior.scaleDown.stabilizationWindowSeconds", 120),
    ({"kubernetes.monitoring.monitor": "none"}, "monitoring/monitor.yaml", None),
    ({"kubernetes.monitoring.monitor": "none"}, "monitoring/dashboard.yaml", None),
    ({"kubernetes.monitoring.monitor": "annotations"}, "monitoring/rules.yaml", None),
    ({"kubernetes.monitoring.monitor": "annotations"},
     "40-deployment.yaml:spec.template.metadata.annotations.prometheus~io/port", "8090"),
    ({"kubernetes.monitoring.monitor": "service"}, "monitoring/monitor.yaml:spec.ports.0.port", 8090),
    ({"kubernetes.monitoring.scrape_interval_s": 30},
     "monitoring/monitor.yaml:spec.podMetricsEndpoints.0.interval", "30s"),
    ({"kubernetes.monitoring.labels": {"release": "p"}}, "monitoring/rules.yaml:metadata.labels.release", "p"),
    ({"kubernetes.monitoring.labels": {"release": "p"}}, "monitoring/monitor.yaml:metadata.labels.release", "p"),
    ({"kubernetes.monitoring.namespace": "watch"},
     "30-network-policy.yaml:spec.ingress.1.from.0.namespaceSelector.matchLabels.kubernetes~io/metadata~name", "watch"),
    ({"kubernetes.network.clients": ["edge"]},
     "30-network-policy.yaml:spec.ingress.0.from.1.namespaceSelector.matchLabels.kubernetes~io/metadata~name", "edge"),
    ({"kubernetes.network.egress": ["10.0.0.0/8:443"]},
     "30-network-policy.yaml:spec.egress.0.to.0.ipBlock.cidr", "10.0.0.0/8"),
    ({"serving.cache": {"redis": "redis://10.1.2.3:7000"}},
     "30-network-policy.yaml:spec.egress.0.to.0.ipBlock.cidr", "10.1.2.3/32"),
    ({"tracing": {"endpoint": "http://10.1.2.3:4318"}},
     "30-network-policy.yaml:spec.egress.0.to.0.ipBlock.cidr", "10.1.2.3/32"),
    ({"kubernetes.route": {"gateway": "edge/public"}}, "gateway/http-route.yaml:spec.parentRefs.0",
     {"name": "public", "namespace": "edge"}),
    ({"kubernetes.route": {"gateway": "e/p", "path": "/d"}},
     "gateway/http-route.yaml:spec.rules.0.matches.0.path.value", "/d"),
    ({"kubernetes.route": {"gateway": "e/p", "hostnames": ["*.d.org"]}},
     "gateway/http-route.yaml:spec.hostnames", ["*.d.org"]),
    ({"kubernetes.route": {"gateway": "e/p", "timeout_s": 7}},
     "gateway/http-route.yaml:spec.rules.0.timeouts.request", "7s"),
    ({"kubernetes.route": EDGE | {"auth": {"api_keys": "k"}}},
     "gateway/authentication.yaml:spec.apiKeyAuth.credentialRefs.0.name", "k"),
    ({"kubernetes.route": EDGE | {"auth": {"jwt": {"issuer": "https://i", "jwks": "https://i/k"}}}},
     "gateway/authentication.yaml:spec.jwt.providers.0.issuer", "https://i"),
    ({"kubernetes.route": EDGE | {"auth": {"jwt": {"issuer": "https://i", "jwks": "https://i/k"}}}},
     "gateway/authentication.yaml:spec.jwt.providers.0.remoteJWKS.uri", "https://i/k"),
    ({"kubernetes.route": EDGE | {"auth": {"jwt": {"issuer": "i", "jwks": "https://i/k", "audiences": ["d"]}}}},
     "gateway/authentication.yaml:spec.jwt.providers.0.audiences", ["d"]),
    ({"kubernetes.route": EDGE | {"limit_rps": 9}},
     "gateway/backend-traffic.yaml:spec.rateLimit.local.rules.0.limit.requests", 9),
    ({"kubernetes.route": EDGE | {"limit_rps": 9, "limit_by": "client", "auth": {"api_keys": "k"}}},
     "gateway/backend-traffic.yaml:spec.rateLimit.global.rules.0.limit.requests", 9),
    ({"kubernetes.route": EDGE | {"limit_rps": 9, "max_parallel": 80}},
     "gateway/backend-traffic.yaml:spec.circuitBreaker.maxParallelRequests", 80),
    ({"kubernetes.route": EDGE | {"limit_rps": 9, "gateway_replicas": 2}},
     "gateway/backend-traffic.yaml:spec.rateLimit.local.rules.0.limit.requests", 4),
    ({"scaling.autoscaler": "none"}, "70-autoscaler.yaml", None),
    ({"scaling.min_replicas": 4}, "70-autoscaler.yaml:spec.minReplicas", 4),
    ({"scaling.max_replicas": 40}, "70-autoscaler.yaml:spec.maxReplicas", 40),
    ({"scaling.cpu_percent": 60}, "70-autoscaler.yaml:spec.metrics.1.containerResource.target.averageUtilization", 60),
    ({"scaling.target": 5}, "70-autoscaler.yaml:spec.metrics.0.pods.target.averageValue", "5"),
    ({"scaling.target": "10%"}, "70-autoscaler.yaml:spec.metrics.0.pods.target.averageValue", "123"),
    ({"scaling.metric": "queue_time", "scaling.target": 7},
     "70-autoscaler.yaml:spec.metrics.0.pods.target.averageValue", "7m"),
    (GPU | {"scaling.metric": "gpu", "scaling.target": 55},
     "70-autoscaler.yaml:spec.metrics.0.pods.target.averageValue", "55"),
    ({"scaling.autoscaler": "keda", "scaling.prometheus": "http://p:9"},
     "keda/scaled-object.yaml:spec.triggers.0.metadata.serverAddress", "http://p:9"),
    ({"scaling.autoscaler": "keda"}, "keda/scaled-object.yaml:spec.fallback.replicas", 2),
    ({"scaling.autoscaler": "keda", "scaling.metric": "queue_time"}, "keda/scaled-object.yaml:spec.fallback", None),
    ({"serving.startup_timeout_s": 500}, f"{POD}.containers.0.startupProbe.failureThreshold", 280),
]  # fmt: skip


def value_at(changes: dict[str, Any], place: str) -> Any:
    """The value at a place, which is a file and keys in its last document; `~` stands for a dot in a key."""
    file, _, path = place.partition(":")
    data: Any = render_objects(planned(changes, evidence=EVIDENCE)).get(file)
    if not path or data is None:
        return data
    data = data[0]
    for key in path.split("."):
        key = key.replace("~", ".")
        if isinstance(data, list):
            data = dict(enumerate(map(dict, data))).get(int(key))
        else:
            data = data.get(key)
        if data is None:
            return None
    return data


@pytest.mark.parametrize(("changes", "place", "value"), SWITCHES, ids=lambda case: str(case)[:60])
def test_a_field_takes_effect_in_its_place_and_only_if_it_is_set(
    changes: dict[str, Any], place: str, value: Any
) -> None:
    assert value_at(changes, place) == value
    without = dict(list(changes.items())[:-1])
    assert value_at(without, place) != value


def test_three_revisions_are_kept() -> None:
    assert value_at({}, "40-deployment.yaml:spec.revisionHistoryLimit") == 3


def test_grafana_finds_the_dashboard() -> None:
    assert value_at({}, "monitoring/dashboard.yaml:metadata.labels.grafana_dashboard") == "1"
