"""The ConfigMap with the part of the spec that a pod reads.

Objectives, scaling and other settings of the cluster are not in it, so changing them starts no new pods."""

import hashlib
from typing import Any

from marina.config.signatures import verify_keys
from marina.config.spec import Spec
from marina.k8s.manifests.labels import JUDGE, metadata
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest, one_document, resource

CONFIG, CONFIG_FOLDER, CONFIG_FILE = "config", "/config", "spec.yaml"


def mounted_spec(spec: Spec) -> str:
    """The part of the spec that the server reads, as YAML, without fields that only have their default."""
    return one_document(_mounted(spec))


def judged_spec(spec: Spec) -> str:
    """The part of the spec that a judge reads: that of the server, with the objective and the gate."""
    written = _mounted(spec)
    written |= spec.model_dump(mode="json", exclude_unset=True, include={"slo"})
    if gate := spec.kubernetes.rollout.gate:
        written["kubernetes"] |= {"rollout": {"gate": gate.model_dump(mode="json")}}
    return one_document(written)


def _mounted(spec: Spec) -> dict[str, Any]:
    written = spec.model_dump(mode="json", exclude_unset=True, include={"name", "version", "model", "serving"})
    if spec.text and (spec.text.route or spec.text.sessions):
        written |= {"text": spec.text.model_dump(mode="json", exclude_unset=True)}
    if spec.serving.verify:
        keys = [key.pem for key in verify_keys(spec)]
        written["serving"]["verify"] = written["serving"]["verify"] | {"keys": keys}
    resources = spec.kubernetes.resources
    # The numbers of workers and threads are derived from the resources; the version is in labels and metrics.
    written |= {"version": spec.version, "kubernetes": {"resources": {"cpu": resources.cpu, "gpu": resources.gpu}}}
    return written


def config_sha256(plan: Plan) -> str:
    """The hash of what is mounted."""
    return hashlib.sha256("".join(_data(plan).values()).encode()).hexdigest()


def judged_name(plan: Plan) -> str:
    """The name of the judge's ConfigMap, made from its content, so that a judge starts anew with another gate."""
    return f"{plan.name}-judge-{hashlib.sha256(judged_spec(plan.spec).encode()).hexdigest()[:10]}"


def judged_map(plan: Plan) -> Manifest:
    """The immutable ConfigMap that the judge mounts at `/config`."""
    named = metadata(plan, judged_name(plan), component=JUDGE)
    return resource("v1", "ConfigMap", named, data={CONFIG_FILE: judged_spec(plan.spec)}, immutable=True)


def config_name(plan: Plan) -> str:
    """A name made from the content, so that a rollback finds the configuration that its pods had."""
    return f"{plan.name}-{config_sha256(plan)[:10]}"


def config_map(plan: Plan) -> Manifest:
    """The immutable ConfigMap that pods mount at `/config`."""
    return resource("v1", "ConfigMap", metadata(plan, config_name(plan)), data=_data(plan), immutable=True)


def config_volume(plan: Plan) -> Manifest:
    """Its volume."""
    items = [{"key": name, "path": name} for name in _data(plan)]
    return {"name": CONFIG, "configMap": {"name": config_name(plan), "items": items}}


def _data(plan: Plan) -> dict[str, str]:
    """The spec, and the signatures that `serving.verify` demands."""
    return {CONFIG_FILE: mounted_spec(plan.spec), **plan.signatures}
