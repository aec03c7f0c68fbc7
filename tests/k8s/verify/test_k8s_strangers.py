"""Things that people do in their own manifests, and that are fine."""

from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, planned
from k8s_seeds import SERVER, Change, Objects, put, sown
from k8s_seeds import seed as change_of

from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.check import verify
from marina.k8s.verify.located import locate_rendered
from marina.k8s.verify.rule import Scope, Violation
from marina.k8s.verify.verification import verify_folder


def violations(*changes: Change) -> list[Violation]:
    plan = planned(evidence=EVIDENCE, image=IMAGE)
    objects: Objects = [document for group in render_objects(plan).values() for document in group]
    changed = sown(objects, change_of("", *changes))
    return verify(locate_rendered({"all.yaml": changed}), Scope(SUPPORTED_VERSIONS[-1:], None))


def rollout(objects: Objects) -> None:
    """Argo's Rollout instead of the Deployment."""
    deployment: dict[str, Any] = next(document for document in objects if document["kind"] == "Deployment")
    deployment |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    deployment["spec"]["strategy"] = {"canary": {"steps": [{"setWeight": 20}]}}
    scaler = next(document for document in objects if document["kind"] == "HorizontalPodAutoscaler")
    scaler["spec"]["scaleTargetRef"] = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "digits"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/secrets/key.json"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("DB_PASSWORD_FILE", "/run/secrets/db"),
        ("API_KEY_PATH", "/keys"),
        ("TS_DISABLE_TOKEN_AUTHORIZATION", "true"),
    ],
)
def test_a_variable_with_the_path_of_a_secret_is_no_secret(name: str, value: str) -> None:
    assert violations(put("Deployment", f"{SERVER} env", [{"name": name, "value": value}])) == []


def test_one_endpoint_for_readiness_and_liveness_is_fine_if_liveness_waits_longer() -> None:
    assert violations(put("Deployment", f"{SERVER} readinessProbe httpGet path", "/live")) == []


def test_the_metrics_port_may_be_opened_to_named_clients_only() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    scraped, public = ({"from": clients, "ports": [{"port": 8082}]} for clients in ([prometheus], []))
    assert violations(put("NetworkPolicy", "spec ingress 2", scraped)) == []
    assert {finding.rule for finding in violations(put("NetworkPolicy", "spec ingress 2", public))} == {"port-exposed"}
    management = scraped | {"ports": [{"port": 8081}]}
    assert {finding.rule for finding in violations(put("NetworkPolicy", "spec ingress 2", management))} == {
        "port-exposed"
    }


def test_a_custom_workload_is_checked_like_a_deployment() -> None:
    findings = violations(rollout)
    assert [(finding.rule, finding.level) for finding in findings if finding.rule == "kind-unknown"] == [
        ("kind-unknown", "warning")
    ]
    assert [str(finding) for finding in findings if finding.level == "error"] == []
    latest = violations(rollout, put("Rollout", f"{SERVER} image", "registry.local/digits:latest"))
    assert "image-digest" in {finding.rule for finding in latest}


POD = "{metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: i, ports: [{containerPort: 80}], %s}]}}"


def deployment(name: str = "a", more: str = "", **container: object) -> str:
    fields = ", ".join(f"{key}: {value}" for key, value in container.items()) or "env: []"
    selector = "{matchLabels: {app: a}}"
    return f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec: {{selector: {selector}, {more} template: {POD % fields}}}
---"""


SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {app: a}, ports: [{port: 80}]}
---"""
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a}
spec: {minAvailable: 2, selector: {matchLabels: {app: a}}}
---"""
JOB = f"\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{template: {POD % 'env: []'}}}\n---"
MONITOR = """
apiVersion: monitoring.coreos.com/v1
kind: %s
metadata: {name: a}
spec: {selector: {matchLabels: {app: a}}, %s: [{interval: 30s, scheme:}]}
---"""
SCALER = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}
  maxReplicas: 3
  metrics: [{type: External, external: {metric: {name: "%s"}, target: {type: Value, value: 5}}}]
---"""
KEDA = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: a}
spec: {scaleTargetRef: {name: a}, triggers: [{type: %s, metadata: {%s}}]}
---"""
ADAPTER = """
rules:
  default: %s
  custom:
  - {seriesQuery: "work_total{pod!=''}", name: {as: %s}, metricsQuery: "sum(rate(<<.Series>>[2m])) by (<<.GroupBy>>)"}
---"""
ROUTE = """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a}
spec: {defaultBackend: {service: {name: %s}}}
---"""
CONFIGURED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: adapter}
data:
  config.yaml: |
    rules: [{seriesQuery: work_total, name: {as: work}, metricsQuery: "sum(rate(<<.Series>>[2m]))"}]
    externalRules: [{seriesQuery: queue, name: {as: queue}, metricsQuery: "sum(<<.Series>>)"}]
---"""
CALICO = """
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: a}
spec: {selector: app == 'a', types: [Egress], egress: [{action: Allow, protocol: UDP, destination: {ports: [53]}}]}
---"""
DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}}
---"""
KNATIVE = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: a}
spec: {template: {spec: {containers: [{image: i}]}}}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec: {predictor: {model: {modelFormat: {name: pytorch}}}}
---"""
OUTSIDE = """
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {type: ExternalName, externalName: a.example.org}
---"""
ADMIN = "{name: admin, port: 81, targetPort: 80}"
PERCENT = SCALER.replace("External, external", "Resource, resource").replace(
    'metric: {name: "%s"}, target: {type: Value, value: 5}',
    "name: cpu, target: {type: Utilization, averageUtilization: 5}",
)
LIMITS = """
apiVersion: v1
kind: LimitRange
metadata: {name: a}
spec: {limits: [{type: Container, defaultRequest: {cpu: 100m}}]}
---"""
SECRET = "\napiVersion: v1\nkind: Secret\nmetadata: {name: hook}\n---"
PING = "{httpGet: {path: /ping, port: 80}}"
PROXIED = f"""containers: [
  {{name: t, image: "pytorch/torchserve:0.12.0", args: [serve, --disable-token-auth]}},
  {{name: a, image: i, readinessProbe: {PING}, securityContext: {{readOnlyRootFilesystem: true}}"""
FILLED = "\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, labels: {inject: 'true'}}\n---"
LIVE = "{tcpSocket: {port: 80}}"
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: zones.example.org}
spec: {group: example.org, scope: Cluster, names: {kind: Zone, plural: zones}, versions: []}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: b}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: a}
---
apiVersion: example.org/v1
kind: Zone
metadata: {name: a}
---"""


def errors(folder: Path, *texts: str) -> list[str]:
    (folder / "all.yaml").write_text("".join(texts), encoding="utf-8")
    findings = verify_folder(folder, [SUPPORTED_VERSIONS[-1]]).findings
    return [f"{finding.rule}: {finding}" for finding in findings if finding.level == "error"]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param((deployment(more="replicas: 2,"), deployment("b", "replicas: 2,"), BUDGET), id="one budget, two"),
        pytest.param((JOB, BUDGET, MONITOR % ("PodMonitor", "podMetricsEndpoints")), id="selectors of a Job's pods"),
        pytest.param((BUDGET, MONITOR % ("ServiceMonitor", "endpoints")), id="selectors of pods elsewhere"),
        pytest.param((deployment().replace("app: a", "app: b"), CRD, BUDGET), id="pods of an operator"),
        pytest.param((SCALER % "queue",), id="a scaler of a Deployment elsewhere"),
        pytest.param((ROUTE % "a",), id="a route to a Service elsewhere"),
        pytest.param((deployment(), SERVICE.replace("port: 80", "port: 81")), id="a port that is not declared"),
        pytest.param((deployment(), SERVICE, KEDA % ("kafka", "topic: a")), id="no pods while a queue is empty"),
        pytest.param(
            (deployment(), SERVICE, KEDA % ("prometheus", "serverAddress: a, threshold: '1', query: vector(1)")),
            id="no pods while a gateway gets nothing",
        ),
        pytest.param((deployment(), SCALER % "balancer.example|https|request_count"), id="a rate by another system"),
        pytest.param((deployment(), SCALER % "queue_messages_count"), id="a gauge named count"),
        pytest.param((deployment(), SCALER % "work_total", ADAPTER % ("false", "work_total")), id="a rate named total"),
        pytest.param((deployment(), SCALER % "work", ADAPTER % ("true", "more")), id="the adapter's own rules"),
        pytest.param((deployment(livenessProbe=LIVE, readinessProbe=LIVE),), id="one probe of a database"),
        pytest.param((deployment(livenessProbe="{httpGet: {path: /ready, port: 80}}"),), id="a path called ready"),
        pytest.param(
            (deployment(env="[{name: A, valueFrom: {configMapKeyRef: {name: ca, key: ca.crt}}}]"), FILLED),
            id="a ConfigMap that a controller fills",
        ),
        *(
            pytest.param((deployment(env=f"[{{name: {name}, value: '{value}'}}]"),), id=name)
            for name, value in (
                ("ALLOW_EMPTY_PASSWORD", "yes"),
                ("EOS_TOKEN", "</s>"),
                ("OPENAI_API_KEY", "EMPTY"),
                ("MAX_TOKEN_LENGTH", "512"),
                ("TOKEN_URL", "https://login.example"),
                ("SECRET_NAME", "models"),
                ("DB_PASSWORD", "$(FROM_ELSEWHERE)"),
            )
        ),
        pytest.param((SECRET, SECRET), id="the same object twice"),
        pytest.param((deployment(), SCALER % "lag_sum"), id="a gauge named sum"),
        pytest.param((deployment().replace("spec: {containers", "spec: {hostNetwork: true, containers"), SERVICE, DENY),
                     id="a policy for the node's network"),
        pytest.param((deployment().replace("containers: [{name: a, image: i", PROXIED), SERVICE),
                     id="a proxy of TorchServe"),
        pytest.param((deployment(), SCALER % "queue", CONFIGURED), id="an external rule of a configured adapter"),
        pytest.param((deployment(), SCALER % "queue", ADAPTER % ("false", "work")), id="a metric of another server"),
        pytest.param((deployment(), SERVICE, CALICO), id="a policy of Calico for what leaves"),
        pytest.param((deployment(), SERVICE, DENY, CALICO), id="a policy of Calico beside one that denies"),
        pytest.param((KNATIVE, ROUTE % "a, port: {number: 80}"), id="a route to a Service of Knative"),
        pytest.param(
            (deployment("b"), SERVICE, KNATIVE, ROUTE % "b, port: {number: 80}", SCALER % "queue"),
            id="what a custom resource stands for",
        ),
        pytest.param((SERVICE, ROUTE % "redirect, port: {name: use-annotation}"), id="an action of a load balancer"),
        pytest.param(
            (deployment(), SERVICE, ROUTE % "a, port: {name: use-annotation}"), id="an action beside a Service"
        ),
        pytest.param(
            (deployment(), (MONITOR % ("PodMonitor", "podMetricsEndpoints")).replace("interval", "port: web, interval")
             .replace("selector", "namespaceSelector: {matchNames: [b]}, selector")),
            id="a monitor of another namespace",
        ),
        pytest.param((OUTSIDE, ROUTE % "a, port: {number: 443}"), id="a route to a host outside"),
        pytest.param(
            (deployment(), SERVICE.replace("name: a}", "name: b, labels: {app: a}}").replace("{port: 80}", ADMIN),
             SERVICE.replace("name: a}", "name: a, labels: {app: a}}").replace("{port: 80}", "{name: web, port: 80}"),
             (MONITOR % ("ServiceMonitor", "endpoints")).replace("interval", "port: web, interval")),
            id="a monitor of one of two Services",
        ),
        pytest.param(
            (deployment(), deployment("b").replace("containerPort: 80", "containerPort: 80, name: web"),
             SERVICE.replace("80}", "80, targetPort: web}"),
             (MONITOR % ("PodMonitor", "podMetricsEndpoints")).replace("interval", "port: web, interval")),
            id="a port that only some of the pods have",
        ),
        pytest.param(
            (deployment(), PERCENT, LIMITS), id="a request that the namespace gives by default"
        ),
        pytest.param(
            (deployment().replace("labels: {app: a}", "labels: {app: a}, annotations: {prometheus.io/port: '15020'}"),),
            id="an annotation for a port that is not declared",
        ),
        pytest.param(
            (deployment(args="[--model, 'http://torchserve:8080/predictions/a']", readinessProbe=PING,
                        securityContext="{readOnlyRootFilesystem: true}"), SERVICE),
            id="a client of TorchServe",
        ),
        pytest.param(
            (deployment(readinessProbe=PING).replace("80}]", "8080}, {containerPort: 8081}, {containerPort: 8082}]"),
             SERVICE.replace("port: 80", "port: 8081")),
            id="another server on 8080 to 8082",
        ),
        pytest.param(
            (deployment(env="[{name: HOOK_SECRET, value: hook}]"), SECRET), id="the name of a Secret in a variable"
        ),
        pytest.param((deployment().replace("apps/v1", "v1").replace("Deployment", "ReplicationController")
                      .replace("{matchLabels: {app: a}}", "{app: a}"), BUDGET.replace("2", "0")), id="an old kind"),
    ],
)  # fmt: skip
def test_sound_manifests_have_no_error(tmp_path: Path, texts: tuple[str, ...]) -> None:
    assert errors(tmp_path, *texts) == []


def test_a_secret_at_the_end_of_a_name_is_found_and_a_wrong_reference_beside_a_right_one_too(tmp_path: Path) -> None:
    wrong = errors(
        tmp_path,
        deployment(env="[{name: AWS_SECRET_ACCESS_KEY, value: abc}]"),
        SERVICE,
        ROUTE % "b",
        (SCALER % "queue").replace("name: a}\n  max", "name: c}\n  max"),
        BUDGET.replace("app: a", "app: b"),
    )
    assert {error.partition(":")[0] for error in wrong} == {
        "pdb-selects-nothing",
        "route-backend",
        "scaler-target",
        "secret-in-env",
    }


def test_objects_of_no_namespace_are_not_missing_theirs(tmp_path: Path) -> None:
    errors(tmp_path, CRD)
    assert "namespace-mixed" not in {finding.rule for finding in verify_folder(tmp_path).findings}


def test_what_a_manifest_says_cannot_control_the_terminal(tmp_path: Path) -> None:
    errors(tmp_path, 'apiVersion: v1\nkind: "Un\\e[2Jknown"\nmetadata: {name: a}\n')
    assert "Unknown/a" in verify_folder(tmp_path).to_text()


def test_a_server_without_containers_does_not_stop_the_check(tmp_path: Path) -> None:
    ports = "[{containerPort: 8080}, {containerPort: 8081}, {containerPort: 7070}]"
    sidecar = f"initContainers: [{{name: a, restartPolicy: Always, ports: {ports}}}], containers:"
    assert errors(tmp_path, deployment().replace("containers: [", sidecar + " [], x: ["), SERVICE)
