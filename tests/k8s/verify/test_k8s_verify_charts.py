"""What charts of other servers render to, and what is fine in it."""

from pathlib import Path

import pytest

from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.verification import verify_folder

SERVER = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: a}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {serviceAccountName: "%s", containers: [{name: a, image: i, %s}]}
---"""
SPREAD = """
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: a, image: i}]
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {batch.kubernetes.io/job-name: %s}}
---"""
SCALER = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: a}
spec:
  minReplicaCount: 1
  scaleTargetRef: {kind: StatefulSet, name: a}
  triggers: [{type: cpu, metadata: {type: %s, value: "5"}}]
---"""
TARGET = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec: {minReplicas: 2, maxReplicas: 3, scaleTargetRef: {apiVersion: %s, kind: StatefulSet, name: a}}
---"""
ADDRESSES = """
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.0.0.0/24]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: b}
"""
LIVENESS = "livenessProbe: {httpGet: {path: /v1/models, port: 80}}"


def variable(value: str) -> str:
    return f"env: [{{name: A_TOKEN, value: '{value}'}}]"


def levels(folder: Path, text: str) -> dict[str, str]:
    """The level of each rule that has a finding."""
    (folder / "all.yaml").write_text(text, encoding="utf-8")
    return {finding.rule: finding.level for finding in verify_folder(folder, [SUPPORTED_VERSIONS[-1]]).findings}


@pytest.mark.parametrize("value", ["[PAD]", "vault:secret/data/a#b", "arn:aws:secretsmanager:a:1:secret:b", "op://a/b"])
def test_what_only_refers_to_a_secret_is_none(tmp_path: Path, value: str) -> None:
    assert "secret-in-env" not in levels(tmp_path, SERVER % ("", variable(value)))
    assert "secret-in-env" in levels(tmp_path, SERVER % ("", variable("hf_" + value)))


@pytest.mark.parametrize("password", ["$(PASSWORD)", "<PASSWORD>", "", "80/@", "80?at=@", "80;user=a"])
def test_an_address_without_a_password_in_it_is_no_secret(tmp_path: Path, password: str) -> None:
    address = variable("redis://a:%s@b").replace("A_TOKEN", "STORE")
    assert "secret-in-env" not in levels(tmp_path, SERVER % ("", address % password))
    assert levels(tmp_path, SERVER % ("", address % "p4ss"))["secret-in-env"] == "error"


def test_the_controller_of_an_autoscaler_reads_only_the_group_of_its_target(tmp_path: Path) -> None:
    scaled = SERVER % ("", LIVENESS) + TARGET
    assert "scaler-target" not in levels(tmp_path, scaled % "apps/v1beta2")
    assert levels(tmp_path, scaled % "extensions/v1beta1")["scaler-target"] == "error"


def test_an_empty_name_is_no_reference(tmp_path: Path) -> None:
    assert "reference-missing" not in levels(tmp_path, SERVER % ("", LIVENESS))
    assert "reference-missing" in levels(tmp_path, SERVER % ("b", LIVENESS))


def test_a_liveness_probe_that_lists_the_models_of_another_server_is_no_error(tmp_path: Path) -> None:
    assert levels(tmp_path, SERVER % ("", LIVENESS))["liveness-of-model"] == "warning"
    served = SERVER.replace("image: i", "image: pytorch/torchserve") % ("", LIVENESS)
    assert levels(tmp_path, served)["liveness-of-model"] == "error"


def test_the_pods_of_a_job_have_its_name_among_their_labels(tmp_path: Path) -> None:
    assert "spread-selects-nothing" not in levels(tmp_path, SPREAD % "a")
    assert "spread-selects-nothing" in levels(tmp_path, SPREAD % "b")


def test_a_type_of_target_among_the_metadata_counts(tmp_path: Path) -> None:
    server = SERVER % ("", LIVENESS)
    assert "cpu-without-request" not in levels(tmp_path, server + SCALER % "AverageValue")
    assert "cpu-without-request" in levels(tmp_path, server + SCALER % "Utilization")


def test_addresses_for_services_are_in_no_namespace(tmp_path: Path) -> None:
    assert "namespace-mixed" not in levels(tmp_path, ADDRESSES)
