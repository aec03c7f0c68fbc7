"""Checks manifests without a cluster: against schemas, against rules, and against the metrics of a running server."""

from k8s.verify.check import all_rules, verify
from k8s.verify.live import check_live
from k8s.verify.located import locate_rendered, read_objects
from k8s.verify.rule import Rule, Scope, Violation
from k8s.verify.run import Verification, explain_rule, verify_folder, verify_spec

__all__ = [
    "Rule",
    "Scope",
    "Verification",
    "Violation",
    "all_rules",
    "check_live",
    "explain_rule",
    "locate_rendered",
    "read_objects",
    "verify",
    "verify_folder",
    "verify_spec",
]
