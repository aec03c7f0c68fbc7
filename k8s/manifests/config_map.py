"""The part of a spec that a pod reads, as the ConfigMap holds it.

Objectives, scaling and the rest of the cluster's settings are not in it: changing them starts no new pods.
"""

from __future__ import annotations

import hashlib

from kubernetes.client import V1ConfigMap

from config.spec import Spec
from k8s.manifests.labels import metadata
from k8s.manifests.plan import Plan
from k8s.manifests.yaml_text import one_document

CONFIG_FILE = "spec.yaml"


def mounted_spec(spec: Spec) -> str:
    """What the server reads of a spec, with the fields that were written in it and no others."""
    given = spec.model_dump(mode="json", exclude_unset=True, include={"name", "version", "model", "serving"})
    if spec.text and (spec.text.route or spec.text.sessions):
        given |= {"text": spec.text.model_dump(mode="json", exclude_unset=True)}
    resources = spec.kubernetes.resources
    # The numbers of workers and threads follow from these; the name and version are in labels and metrics.
    given |= {"version": spec.version, "kubernetes": {"resources": {"cpu": resources.cpu, "gpu": resources.gpu}}}
    return one_document(given)


def config_sha256(plan: Plan) -> str:
    """The hash of what is mounted."""
    return hashlib.sha256(mounted_spec(plan.spec).encode()).hexdigest()


def config_name(plan: Plan) -> str:
    """Another name for another content: a rollback finds the configuration that its pods had, and nobody edits it."""
    return f"{plan.name}-{config_sha256(plan)[:10]}"


def config_map(plan: Plan) -> V1ConfigMap:
    """The immutable ConfigMap that pods mount at `/config`."""
    return V1ConfigMap(
        api_version="v1",
        kind="ConfigMap",
        metadata=metadata(plan, config_name(plan)),
        immutable=True,
        data={CONFIG_FILE: mounted_spec(plan.spec)},
    )
