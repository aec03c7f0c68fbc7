"""The ConfigMap with the part of the spec that a pod reads.

Objectives, scaling and other settings of the cluster are not in it, so changing them starts no new pods."""

import hashlib

from marina.config.spec import Spec
from marina.k8s.manifests.labels import metadata
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest, one_document, resource

CONFIG_FILE = "spec.yaml"


def mounted_spec(spec: Spec) -> str:
    """The part of the spec that the server reads, as YAML, without fields that only have their default."""
    written = spec.model_dump(mode="json", exclude_unset=True, include={"name", "version", "model", "serving"})
    if spec.text and (spec.text.route or spec.text.sessions):
        written |= {"text": spec.text.model_dump(mode="json", exclude_unset=True)}
    resources = spec.kubernetes.resources
    # The numbers of workers and threads are derived from the resources; the version is in labels and metrics.
    written |= {"version": spec.version, "kubernetes": {"resources": {"cpu": resources.cpu, "gpu": resources.gpu}}}
    return one_document(written)


def config_sha256(plan: Plan) -> str:
    """The hash of the mounted spec."""
    return hashlib.sha256(mounted_spec(plan.spec).encode()).hexdigest()


def config_name(plan: Plan) -> str:
    """A name made from the content, so that a rollback finds the configuration that its pods had."""
    return f"{plan.name}-{config_sha256(plan)[:10]}"


def config_map(plan: Plan) -> Manifest:
    """The immutable ConfigMap that pods mount at `/config`."""
    data = {CONFIG_FILE: mounted_spec(plan.spec)}
    return resource("v1", "ConfigMap", metadata(plan, config_name(plan)), data=data, immutable=True)
