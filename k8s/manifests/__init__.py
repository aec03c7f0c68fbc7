"""Renders Kubernetes objects from a spec, an image and evidence, and writes them to a folder."""

from marina.k8s.manifests.config_map import config_sha256
from marina.k8s.manifests.copy_job import copy_objects, copy_selector
from marina.k8s.manifests.engines import with_engine
from marina.k8s.manifests.evidence import check_evidence
from marina.k8s.manifests.judge import judge_name
from marina.k8s.manifests.labels import CONFIG_ANNOTATION, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION
from marina.k8s.manifests.load_job import LOAD_CONTAINER, LoadJob, load_objects
from marina.k8s.manifests.notes import patch_notes
from marina.k8s.manifests.objects import ADDONS, render_objects
from marina.k8s.manifests.plan import Plan, make_plan
from marina.k8s.manifests.records import load_image
from marina.k8s.manifests.summary import next_steps, summary_text
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.manifests.writing import (
    ORIGIN,
    WrittenFiles,
    describe_files,
    manifest_texts,
    manifests_folder,
    replace_folder,
    write_manifests,
)
from marina.k8s.manifests.yaml_text import Files, to_yaml

__all__ = [
    "ADDONS",
    "CONFIG_ANNOTATION",
    "EVIDENCE_ANNOTATION",
    "LOAD_CONTAINER",
    "ORIGIN",
    "PACKAGE_ANNOTATION",
    "SUPPORTED_VERSIONS",
    "Files",
    "LoadJob",
    "Plan",
    "WrittenFiles",
    "check_evidence",
    "config_sha256",
    "copy_objects",
    "copy_selector",
    "describe_files",
    "judge_name",
    "load_image",
    "load_objects",
    "make_plan",
    "manifest_texts",
    "manifests_folder",
    "next_steps",
    "patch_notes",
    "render_objects",
    "replace_folder",
    "summary_text",
    "to_yaml",
    "with_engine",
    "write_manifests",
]
