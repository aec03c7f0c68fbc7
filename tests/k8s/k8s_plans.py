"""Plans for tests: the digits example, as if it was packaged, measured and built, with options."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from specs import digits_spec

from marina.config.spec import Spec
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan, make_plan

SHA256 = "49346cd03cfd24a763998083b70aeead4faae86613ec9864a148abefc14dc4a1"
RECORD: dict[str, Any] = {
    "schema": "marina.package/1", "name": "digits", "version": "1.0", "source": "./model.py:build",
    "weights": "./digits.safetensors", "handler": "image", "precision": "fp32", "compile": "aot",
    "device": "cpu", "workers": 2, "threads": 1, "batch_sizes": [1, 8], "image": None, "inputs": [], "outputs": [],
    "labels": None, "max_request_bytes": 1, "max_response_bytes": 1,
    "sample": {"file": "sample.png", "content_type": "image/png"}, "key": {"torch": "2.13.0", "device": "cpu"},
    "artifacts": [], "program": None, "cache": None, "files": {},
    "agreement": {"inputs": "calibration", "count": 1, "measure": "top-1", "agreement": 1.0, "max_abs_difference": 0.0,
                  "cosine": 1.0},
}  # fmt: skip
PACKAGE: dict[str, Any] = {"mar": "model.mar", "sha256": SHA256, "bytes": 975_778, "record": RECORD}
MACHINE: dict[str, Any] = {
    "processor": "A Processor @ 2 GHz", "cores": 2, "cpu_limit": None, "memory_bytes": 8_000_000_000,
    "memory_limit_bytes": None, "system": "Linux 6.8", "python": "3.11.9",
}  # fmt: skip
LATENCIES = dict.fromkeys(("p50", "p90", "p95", "p99", "p999", "mean", "max"), 12.5)
EVIDENCE: dict[str, Any] = {
    "schema": "marina.evidence/1", "status": "PASS", "reasons": [], "name": "digits", "version": "1.0",
    "package": SHA256, "objective": {"p99_ms": 50.0, "error_rate": 0.001, "throughput_rps": 100.0},
    "knee": {"rps": 1234.5}, "cold_start_s": 2.99,
    "memory": {"java_bytes": 263_561_216, "supervisor_bytes": 44_658_688, "total_bytes": 815_525_888,
               "workers_bytes": [253_526_016, 253_779_968]},
    "settings": {"workers": 2, "threads": 1, "max_batch": 8, "max_batch_delay_ms": 5}, "at_70_percent": None,
    "arrivals": "poisson", "machine": MACHINE, "at": "2026-11-21T11:17:41Z", "trials": [],
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "schema": "marina.image/1",
    "ref": "registry.local/marina/digits",
    "tag": "1.0",
    "digest": f"sha256:{'a' * 64}",
    "package_sha256": SHA256,
    "target": "cpu",
    "base": "docker.io/library/python:3.11-slim-bookworm",
    "builder": "buildah 1.33",
    "layers": [],
    "bytes": 0,
}

GPU: dict[str, Any] = {"serving.device": "cuda", "kubernetes.resources.gpu": 1, "model.precision": "fp16"}
FULL: dict[str, Any] = {
    "cost": {"pod_hour": 0.18, "budget_per_10k": 0.01},
    "scaling.autoscaler": "keda",
    "kubernetes.pull_secrets": ["registry-key"],
    "model.cpu_target": "x86-64-v3",
    "kubernetes.node_selector": {"pool": "inference"},
    "kubernetes.tolerations": ["dedicated=inference:NoSchedule", "spot"],
    "kubernetes.network": {
        "clients": ["shop"],
        "egress": ["10.0.0.0/8:443"],
        "dns": ["openshift-dns:5353", "169.254.20.10/32:53"],
    },
    "kubernetes.rollout": {"max_surge": 1},
    "kubernetes.model": {"url": "https://store.local/digits.mar"},
    "kubernetes.route": {"gateway": "edge/public", "hostnames": ["digits.example.org"]},
    "kubernetes.monitoring": {"monitor": "service", "labels": {"release": "prometheus"}},
    "kubernetes.pod": {
        "env": {"HTTPS_PROXY": "http://proxy.local:3128"},
        "env_from": ["configmap/tuning"],
        "volumes": {"ca": {"configMap": {"name": "company-ca"}}},
        "mounts": {"/etc/ssl/company": "ca:ro"},
    },
    "kubernetes.patches": [
        {
            "kind": "Deployment",
            "merge": {
                "spec": {
                    "template": {
                        "metadata": {"annotations": {"team": "vision"}, "labels": {"cost-centre": "7"}},
                        "spec": {"hostUsers": False, "hostAliases": [{"ip": "10.0.0.5", "hostnames": ["store.local"]}]},
                    }
                }
            },
        },
        {"kind": "Service", "name": "digits", "merge": {"spec": {"trafficDistribution": "PreferClose"}}},
        {
            "kind": "ServiceAccount",
            "merge": {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/digits"}}},
        },
    ],
}
# A cluster that chooses users and has no spare node, its own DNS and a private store; quantities as people write them,
# not as they are stored.
OPENSHIFT: dict[str, Any] = {
    "model.cpu_target": "x86-64-v4",
    "serving.drain_propagation_s": 15,
    "kubernetes": {
        "run_as_user": None,
        "resources": {"cpu": "2000m", "memory": "2048Mi"},
        "rollout": {"max_surge": 0},
        "network": {"dns": ["openshift-dns:5353"]},
        "model": {"url": "s3://models/digits.mar", "secret": "store"},
    },
}
EDGE: dict[str, Any] = {
    "kubernetes.route": {"gateway": "edge/public", "auth": {"api_keys": "digits-keys"}, "limit_rps": 500},
    "kubernetes.network.clients": ["edge"],
}
TOKENS: dict[str, Any] = {
    "kubernetes.route": {
        "gateway": "edge/public",
        "auth": {"jwt": {"issuer": "https://id.local", "jwks": "https://id.local/keys", "audiences": ["digits"]}},
        "limit_rps": 5,
        "limit_by": "client",
    },
    "kubernetes.network.clients": ["envoy-gateway-system"],
}
# Every option alone, and all compatible ones together.
OPTIONS = [
    pytest.param({}, id="defaults"),
    pytest.param(GPU, id="gpu"),
    pytest.param(GPU | {"kubernetes.resources.gpu_resource": "nvidia.com/mig-1g.10gb"}, id="slice of a gpu"),
    pytest.param(FULL, id="everything"),
    *(pytest.param({field: value}, id=field.rpartition(".")[2]) for field, value in FULL.items()),
    *(pytest.param({"scaling.autoscaler": kind, "scaling.metric": metric} | (GPU if metric == "gpu" else {}),
                   id=f"{kind} by {metric}")
      for kind in ("hpa", "keda", "none") for metric in ("requests", "queue_time", "gpu")),
    *(pytest.param({"kubernetes.monitoring.monitor": kind}, id=f"monitor {kind}")
      for kind in ("annotations", "none", "pod", "service")),
    pytest.param({"scaling.forecast": "weekly", "scaling.target": 70}, id="a forecast"),
    pytest.param({"kubernetes.model": {"claim": "models/digits/1.mar"}}, id="claim"),
    pytest.param({"kubernetes.model": {"image": "registry.local/models:1"}}, id="image volume"),
    pytest.param({"kubernetes.model": {"url": "s3://models/digits.mar", "secret": "store"}}, id="private store"),
    pytest.param({"kubernetes.model": {"secret": "address", "cache": "mars"}}, id="cache"),
    pytest.param({"kubernetes.network.policy": False}, id="no policy"),
    pytest.param({"kubernetes": {"run_as_user": None}}, id="no user"),
    pytest.param({"kubernetes.create_namespace": False}, id="no namespace"),
    pytest.param({"slo": None}, id="no objective"),
    pytest.param(EDGE, id="keys and a limit"),
    pytest.param(TOKENS, id="tokens and a limit for each client"),
    pytest.param({"name": "y", "version": "1e3"}, id="names that look like values"),
    pytest.param({"model.cpu_target": "x86-64-v4"}, id="a target"),
    pytest.param({"serving.log": "json", "model.compile": "jit"}, id="jit"),
]  # fmt: skip


def fill(
    folder: Path,
    spec: Spec,
    *,
    package: bool = True,
    evidence: dict[str, Any] | None = None,
    image: dict[str, Any] | None = None,
) -> None:
    """Writes some records into a build folder."""
    if package:
        packed = {"workers": spec.workers, "threads": spec.threads}
        key = RECORD["key"] | {"target": spec.model.cpu_target}
        packed |= {"key": key, "compile": spec.model.compile, "precision": spec.model.precision}
        record = RECORD | {"name": spec.name, "version": spec.version} | packed
        (folder / "package.json").write_text(json.dumps(PACKAGE | {"record": record}), encoding="utf-8")
    for name, data in (("evidence.json", evidence), ("image.json", image)):
        if data is not None:
            (folder / name).write_text(json.dumps(data), encoding="utf-8")


def planned(changes: dict[str, Any] | None = None, **records: Any) -> Plan:
    """The plan of the digits example with changes; cached."""
    return _planned(json.dumps([changes, records]))


@cache
def _planned(arguments: str) -> Plan:
    changes, records = json.loads(arguments)
    spec = digits_spec(changes)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), spec, **records)
        return make_plan(spec, Path(folder))


# Each entry keeps its plan alive, so that no other plan gets the same id.
_RENDERED: dict[int, tuple[Plan, list[dict[str, Any]]]] = {}


def documents(plan: Plan) -> list[dict[str, Any]]:
    """All objects of a plan, rendered once; do not change them."""
    if id(plan) not in _RENDERED:
        _RENDERED[id(plan)] = plan, [document for some in render_objects(plan).values() for document in some]
    return list(_RENDERED[id(plan)][1])


def the_only(plan: Plan, kind: str, name: str | None = None) -> dict[str, Any]:
    matching = [doc for doc in documents(plan) if doc["kind"] == kind and name in (None, doc["metadata"]["name"])]
    assert len(matching) == 1, kind
    return matching[0]


def pod(plan: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = the_only(plan, "Deployment")["spec"]["template"]["spec"]
    return spec
