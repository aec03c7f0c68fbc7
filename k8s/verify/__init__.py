"""Checks manifests without a cluster: against schemas, against rules, and against the metrics of a running server."""

from marina.k8s.verify.check import all_rules, verify
from marina.k8s.verify.located import locate_rendered
from marina.k8s.verify.rule import Scope
from marina.k8s.verify.verification import explain_rule, verify_folder, verify_spec

__all__ = [
    "Scope",
    "all_rules",
    "explain_rule",
    "locate_rendered",
    "verify",
    "verify_folder",
    "verify_spec",
]
