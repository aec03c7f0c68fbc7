"""Renders Kubernetes objects from a spec, an image and evidence, and writes them to a folder."""

from marina.k8s.manifests.config_map import config_sha256
from marina.k8s.manifests.evidence import check_evidence
from marina.k8s.manifests.labels import CONFIG_ANNOTATION, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION
from marina.k8s.manifests.load_job import LOAD_CONTAINER, LoadJob, load_objects
from marina.k8s.manifests.notes import patch_notes
from marina.k8s.manifests.objects import ADDONS, Files, render_objects
from marina.k8s.manifests.plan import Plan, make_plan
from marina.k8s.manifests.records import read_load_image
from marina.k8s.manifests.summary import next_steps, summary_text
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.manifests.writing import (
    MANIFESTS_FOLDER,
    ORIGIN,
    WrittenFiles,
    describe_files,
    manifest_texts,
    replace_folder,
    write_manifests,
)
from marina.k8s.manifests.yaml_text import to_yaml

__all__ = [
    "ADDONS",
    "CONFIG_ANNOTATION",
    "EVIDENCE_ANNOTATION",
    "LOAD_CONTAINER",
    "MANIFESTS_FOLDER",
    "ORIGIN",
    "PACKAGE_ANNOTATION",
    "SUPPORTED_VERSIONS",
    "Files",
    "LoadJob",
    "Plan",
    "WrittenFiles",
    "check_evidence",
    "config_sha256",
    "describe_files",
    "load_objects",
    "make_plan",
    "manifest_texts",
    "next_steps",
    "patch_notes",
    "read_load_image",
    "render_objects",
    "replace_folder",
    "summary_text",
    "to_yaml",
    "write_manifests",
]
