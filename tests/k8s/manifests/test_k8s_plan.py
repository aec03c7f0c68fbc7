import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, GPU, IMAGE, MACHINE, SHA256, fill, planned, the_only
from specs import digits_spec, tales_spec

from marina.config.errors import InputError
from marina.config.quantity import quantity
from marina.k8s.manifests.notes import derived_numbers, notes
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import make_plan
from marina.k8s.manifests.yaml_text import one_document


def evidence(**changes: Any) -> dict[str, Any]:
    return EVIDENCE | changes


def refused(**records: Any) -> InputError:
    spec = digits_spec(records.pop("changes", None))
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), spec, **records)
        with pytest.raises(InputError) as raised:
            make_plan(spec, Path(folder))
    raised.value.message = raised.value.message.replace(folder, "build/digits")
    return raised.value


def test_the_target_is_a_share_of_the_knee() -> None:
    assert planned(evidence=EVIDENCE).target_rps_per_pod == 864
    assert planned({"scaling.target": "50%"}, evidence=EVIDENCE).target_rps_per_pod == 617
    assert planned({"scaling.target": 12.5}, evidence=EVIDENCE).target_rps_per_pod == 12.5


def test_without_evidence_the_autoscaler_looks_at_the_cpu_and_the_plan_says_so() -> None:
    plan = planned()
    metrics = render_objects(plan)["70-autoscaler.yaml"][0]["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == ["ContainerResource"]
    note = next(note for note in notes(plan) if note.file == "70-autoscaler.yaml")
    assert note.text == "nothing was measured: the autoscaler only looks at the CPU"
    assert note.hint == f"marina calibrate {plan.spec.file}, or set `scaling.target`"


def test_a_stated_target_needs_no_evidence() -> None:
    plan = planned({"scaling.target": 0.25})
    metric = render_objects(plan)["70-autoscaler.yaml"][0]["spec"]["metrics"][0]["pods"]
    assert metric == {
        "metric": {"name": "inference_requests_per_second"},
        "target": {"type": "AverageValue", "averageValue": "250m"},
    }


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"scaling.metric": "queue_time"}, "inference_queue_seconds", "20m"),
        (GPU | {"scaling.metric": "gpu"}, "gpu_utilization_percent", "70"),
    ],
)
def test_the_other_metrics_have_targets_in_their_own_units(changes: dict[str, Any], name: str, value: str) -> None:
    metric = render_objects(planned(changes))["70-autoscaler.yaml"][0]["spec"]["metrics"][0]["pods"]
    assert (metric["metric"]["name"], metric["target"]["averageValue"]) == (name, value)


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_waiting_requests_and_slots_in_use_scale_a_language_model(kind: str, tmp_path: Path) -> None:
    spec = tales_spec({"scaling": {"metric": "waiting", "target": 2, "autoscaler": kind}})
    rendered = render_objects(make_plan(spec, tmp_path))
    if kind == "hpa":
        metrics = rendered["70-autoscaler.yaml"][0]["spec"]["metrics"]
        figures = {each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"] for each in metrics[:2]}
        assert figures == {"inference_waiting_requests": "2", "inference_running_requests": "11200m"}
    else:
        triggers = rendered["keda/scaled-object.yaml"][0]["spec"]["triggers"]
        figures = {each["metadata"]["query"].partition('state="')[2][:7]: each["metadata"] for each in triggers[:2]}
        assert {state: asked["threshold"] for state, asked in figures.items()} == {"waiting": "2", "running": "11.2"}


@pytest.mark.parametrize(
    ("cold_start_s", "up_period", "down_window", "down_period"),
    [
        pytest.param(None, 60, 600, 120, id="unmeasured"),
        pytest.param(2.0, 15, 300, 120, id="at once"),
        pytest.param(25.0, 25, 300, 120, id="half a minute"),
        pytest.param(60.0, 60, 600, 120, id="a minute"),
        pytest.param(200.0, 60, 2000, 400, id="minutes"),
        pytest.param(1000.0, 60, 3600, 1800, id="more than the autoscaler knows"),
    ],
)
def test_pods_are_added_at_once_and_removed_after_a_window_that_follows_the_cold_start(
    cold_start_s: float | None, up_period: int, down_window: int, down_period: int
) -> None:
    behavior = render_objects(planned(evidence=evidence(cold_start_s=cold_start_s)))["70-autoscaler.yaml"][0]["spec"][
        "behavior"
    ]
    up, down = behavior["scaleUp"], behavior["scaleDown"]
    assert (up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]) == (0, down_window)
    assert [(policy["value"], policy["periodSeconds"]) for policy in up["policies"]] == [
        (100, up_period),
        (4, up_period),
    ]
    assert [(policy["value"], policy["periodSeconds"]) for policy in down["policies"]] == [(25, down_period)]


@pytest.mark.parametrize(("cold_start_s", "budget_s"), [(None, 360), (3.0, 360), (180.0, 360), (400.5, 801)])
def test_a_pod_may_take_twice_its_cold_start_and_as_long_as_torchserve_allows(
    cold_start_s: float | None, budget_s: int
) -> None:
    plan = planned(evidence=evidence(cold_start_s=cold_start_s))
    deployment = render_objects(plan)["40-deployment.yaml"][0]["spec"]
    probe = deployment["template"]["spec"]["containers"][0]["startupProbe"]
    assert plan.startup_budget_s == budget_s
    assert probe["periodSeconds"] * probe["failureThreshold"] >= budget_s
    assert deployment["progressDeadlineSeconds"] > budget_s + deployment["minReadySeconds"]


def test_the_grace_period_covers_the_drain() -> None:
    plan = planned({"serving.drain_propagation_s": 7.5, "serving.drain_timeout_s": 60})
    pod = render_objects(plan)["40-deployment.yaml"][0]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 73


def test_memory_has_room_for_the_largest_requests_over_the_measured_peak() -> None:
    plan = planned(evidence=EVIDENCE)
    assert plan.memory == "1280Mi"
    assert (
        quantity(plan.memory) >= EVIDENCE["memory"]["total_bytes"] + plan.spec.workers * plan.spec.largest_batch_bytes
    )
    assert planned({"serving.max_request_mb": 0.1}, evidence=EVIDENCE).memory == "1088Mi"
    assert planned({"model.image.max_pixels": 500_000_000}).memory == "5568Mi"
    assert quantity(plan.memory) >= 1.25 * EVIDENCE["memory"]["total_bytes"]
    assert planned().memory == "2Gi"
    assert planned({"kubernetes.resources.cpu": 8}).memory == "5Gi"
    assert planned({"kubernetes.resources.memory": "3Gi"}, evidence=EVIDENCE).memory == "3Gi"


def test_memory_under_the_measured_peak_is_refused() -> None:
    changes = {"kubernetes.resources.memory": "512Mi", "serving.java_heap_mb": 128, "serving.max_request_mb": 1}
    error = refused(changes=changes, evidence=EVIDENCE)
    text = "`kubernetes.resources.memory`: got 512Mi, but the server used up to 778Mi"
    assert error.message == f"{digits_spec().file}: {text}"
    assert error.hint == "memory: 1152Mi, or auto"


def test_evidence_of_another_package_is_refused() -> None:
    error = refused(evidence=evidence(package="b" * 64))
    assert error.message == (
        "build/digits/evidence.json: measured on sha256 bbbbbbbbbbbb…, but the package is now 49346cd03cfd…"
    )
    assert (error.hint or "").startswith(f"marina calibrate {digits_spec().file}, or delete ")


def test_invalid_evidence_is_refused_with_its_reasons() -> None:
    reasons = [{"id": "no-knee", "text": "4 runs were INVALID"}]
    error = refused(evidence=evidence(status="INVALID", knee=None, reasons=reasons))
    assert error.message == ("build/digits/evidence.json: is INVALID, so it cannot be used: 4 runs were INVALID")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(
            evidence(schema="marina.evidence/9"),
            "got schema `marina.evidence/9`, allowed: `marina.evidence/1`",
            id="another schema",
        ),
        pytest.param(evidence(knee={"rps": "many"}), "not a record of this version", id="another form"),
        pytest.param(
            evidence(status="INVALID", reasons=["4 runs were INVALID"]),
            "not a record of this version",
            id="reasons of another form",
        ),
        pytest.param(evidence(status="INVALID", reasons=[{"text": 4}]), "not a record of this version", id="a number"),
        pytest.param(evidence(status="INVALID", reasons=None), "not a record of this version", id="no reasons"),
        pytest.param({}, "got schema `None`, allowed: `marina.evidence/1`", id="empty"),
    ],
)
def test_a_file_that_is_not_evidence_is_refused(data: dict[str, Any], text: str) -> None:
    assert refused(evidence=data).message == f"build/digits/evidence.json: {text}"


def test_evidence_without_the_package_beside_it_is_refused() -> None:
    error = refused(evidence=EVIDENCE, package=False)
    assert "there is no `package.json` beside it to compare" in error.message
    assert error.hint == f"marina package {digits_spec().file}"


def test_evidence_may_have_keys_that_are_not_read() -> None:
    assert planned(evidence=evidence(weather="fine")).target_rps_per_pod == 864


def test_the_image_is_named_by_its_digest() -> None:
    assert planned(image=IMAGE).image == f"registry.local/marina/digits:1.0@sha256:{'a' * 64}"
    assert planned(image=IMAGE | {"digest": None}).image == "registry.local/marina/digits:1.0"
    assert planned().image == "registry.local/marina/digits:1.0"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param(
            {"package_sha256": "c" * 64},
            "contains package cccccccccccc…, but the package is now 49346cd03cfd…",
            id="another package",
        ),
        pytest.param(
            {"ref": "mirror.local/marina/digits"},
            "`mirror.local/marina/digits`, but `kubernetes.registry` is `registry.local/marina`",
            id="another registry",
        ),
        pytest.param({"target": "cuda"}, "an image for `cuda`, but `serving.device` is `cpu`", id="another device"),
        pytest.param({"schema": "x"}, "got schema `x`, allowed: `marina.image/1`", id="another schema"),
        pytest.param({"ref": None}, "not a record of this version", id="another form"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(changes: dict[str, Any], text: str) -> None:
    error = refused(image=IMAGE | changes)
    assert error.message == f"build/digits/image.json: {text}"
    assert error.hint == f"marina image {digits_spec().file}"


def test_a_package_of_another_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, digits_spec())
    with pytest.raises(InputError, match=r"is for `digits` 1\.0, the spec is for `digits` 2\.0"):
        make_plan(digits_spec({"version": "2.0"}), tmp_path)


def test_a_mar_from_a_store_needs_the_checksum_of_a_package() -> None:
    error = refused(changes={"kubernetes.model": {"claim": "models"}}, package=False)
    assert error.message == "`kubernetes.model`: needs the package's checksum, and nothing was packaged yet"


@pytest.mark.parametrize(
    ("changes", "records", "text"),
    [
        ({}, {"package": False}, "nothing was packaged yet, so the disk space for the model is a guess"),
        pytest.param({}, {}, "`registry.local/marina/digits:1.0` was not built yet", id="image"),
        pytest.param({}, {"image": IMAGE | {"digest": None}}, "`registry.local/marina/digits:1.0` was not pushed yet: "
                     "pods run whatever image has that tag", id="push"),
        pytest.param({"slo.p99_ms": 60}, {"evidence": EVIDENCE}, "the knee was found for `p99_ms: 50, error_rate: "
                     "0.001`, not for what `slo` says now", id="objective"),
        pytest.param({}, {"evidence": evidence(objective=EVIDENCE["objective"] | {"ttft_p99_ms": 800})}, "the knee was "
                     "found for `p99_ms: 50, error_rate: 0.001, ttft_p99_ms: 800`, not for what `slo` says now",
                     id="objective of streams"),
        pytest.param({}, {"evidence": evidence(machine=MACHINE | {"cores": 16, "cpu_limit": 4.0})},
                     "measured with 4 cores, a pod has 2", id="machine"),
        pytest.param({}, {"evidence": evidence(arrivals="constant")}, "the knee was found with evenly spaced arrivals; "
                     "at random ones, as users come, a pod holds less", id="arrivals"),
        pytest.param({}, {"evidence": evidence(cold_start_s=None)}, "the evidence is from a server that was "
                     "already running: its start was not measured", id="start"),
        ({"scaling.min_replicas": 1}, {}, "only one pod: while it moves to another node, nothing answers"),
        pytest.param({"kubernetes.route": {"gateway": "edge/public"}}, {}, "the route's Gateway may be unable to reach "
                     "the pods until its namespace is one of `network.clients`", id="gateway"),
    ],
)  # fmt: skip
def test_guesses_and_traps_are_noted(changes: dict[str, Any], records: dict[str, Any], text: str) -> None:
    assert text in [note.text for note in notes(planned(changes, **records))]


@pytest.mark.parametrize(
    ("rollout", "strategy", "room"),
    [
        ({}, {"maxSurge": 1, "maxUnavailable": 0}, "1 × (2 cpu, 1Gi), 1 nvidia.com/gpu"),
        ({"max_surge": 0}, {"maxSurge": 0, "maxUnavailable": 1}, "none"),
        ({"max_surge": "50%"}, {"maxSurge": "50%", "maxUnavailable": 0}, "5 × (2 cpu, 1Gi), 5 nvidia.com/gpu"),
    ],
)
def test_the_plan_names_the_resources_that_a_rollout_needs(
    rollout: dict[str, Any], strategy: dict[str, Any], room: str
) -> None:
    plan = planned(GPU | {"kubernetes.rollout": rollout, "kubernetes.resources.memory": "1Gi"})
    assert render_objects(plan)["40-deployment.yaml"][0]["spec"]["strategy"]["rollingUpdate"] == strategy
    assert {number.name: number.value for number in derived_numbers(plan)}["room for a rollout"] == room
    texts = [note.text for note in notes(plan) if "if every GPU is in use" in note.text]
    assert bool(texts) == (room != "none")
    assert all(room in text for text in texts)


def test_a_route_is_noted_if_the_drain_is_too_short_for_a_clouds_load_balancer() -> None:
    route = {"kubernetes.route": {"gateway": "edge/public"}, "kubernetes.network.clients": ["edge"]}
    (note,) = [note for note in notes(planned(route)) if "load balancer" in note.text]
    assert note.hint == "serving: {drain_propagation_s: 15}"
    patient = notes(planned(route | {"serving.drain_propagation_s": 15}))
    assert not [note for note in patient if "load balancer" in note.text]


def test_without_the_cpu_only_the_rate_decides() -> None:
    # A fresh mapping each time: setting a dotted field writes into it.
    plan = planned({"scaling": {"cpu_percent": None}}, evidence=EVIDENCE)
    (metric,) = render_objects(plan)["70-autoscaler.yaml"][0]["spec"]["metrics"]
    assert metric["type"] == "Pods"
    shown = {number.name: number.value for number in derived_numbers(plan)}
    assert shown["autoscaler's target"] == "864 requests/s a pod"
    by_keda = planned({"scaling": {"cpu_percent": None, "autoscaler": "keda"}}, evidence=EVIDENCE)
    (trigger,) = render_objects(by_keda)["keda/scaled-object.yaml"][0]["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    error = refused(changes={"scaling": {"cpu_percent": None}})
    assert error.message == "nothing was measured, so without `scaling.cpu_percent` the autoscaler has no metric at all"


def test_there_are_no_notes_when_all_was_built_and_measured() -> None:
    assert notes(planned(evidence=EVIDENCE, image=IMAGE)) == []


def test_every_derived_number_has_a_reason() -> None:
    shown = {number.name: (number.value, number.reason) for number in derived_numbers(planned(evidence=EVIDENCE))}
    assert shown["autoscaler's target"] == ("864 requests/s a pod, or 80 % cpu", "knee 1234 × 70%")
    assert shown["memory of a pod"] == ("1280Mi", "peak 778Mi + 496Mi for the largest requests")
    assert shown["grace period of a pod"] == ("40 s", "propagation 5 + drain 30 + 5")
    assert all(reason for _, reason in shown.values())


def test_a_pods_storage_grows_with_its_model_and_with_compiling() -> None:
    small, compiled = planned(), planned({"model.compile": "jit"})
    assert small.package is not None
    assert small.temporary_bytes >= 2 * small.package.bytes
    assert compiled.temporary_bytes - small.temporary_bytes == 2**30
    loaded = planned({"kubernetes.model": {"url": "https://s/m.mar"}})
    assert loaded.storage_bytes > small.storage_bytes + small.package.bytes


NO_TEXT = "1.0 1e3 0x1F 0o7 1_000 y n no null ~ on .5 12 .5e3 -.2 0X1F 0B1 0O7 +.5_ -_9 0899"


@pytest.mark.parametrize("text", NO_TEXT.split())
def test_text_that_looks_like_a_number_or_a_boolean_is_quoted(text: str) -> None:
    assert one_document({"a": text}).removeprefix("a: ")[0] in "\"'"


def test_the_hash_of_evidence_is_the_hash_of_its_file() -> None:
    recorded = planned(evidence=EVIDENCE).evidence
    assert recorded is not None
    assert recorded.sha256 == hashlib.sha256(json.dumps(EVIDENCE).encode()).hexdigest()
    assert recorded.package == SHA256


def test_a_route_has_all_paths_of_an_archive_by_its_name_in_urls() -> None:
    changes = {
        # Any folder will do.
        "model": {"source": "./samples", "handler": "archive", "name": "BERT_Seq.v1"},
        "kubernetes.route": {"gateway": "edge/public"},
    }
    route = the_only(planned(changes), "HTTPRoute")
    assert [(match["path"]["type"], match["path"]["value"]) for match in route["spec"]["rules"][0]["matches"]] == [
        ("PathPrefix", "/predictions/BERT_Seq.v1"),
        ("PathPrefix", "/explanations/BERT_Seq.v1"),
        ("PathPrefix", "/v2/models/BERT_Seq.v1"),
        ("Exact", "/v1/models/BERT_Seq.v1:predict"),
        ("Exact", "/v1/models/BERT_Seq.v1:explain"),
    ]
