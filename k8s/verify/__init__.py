"""An admission check without a cluster: schemas, rules, and the metric contract."""

from k8s.verify.check import all_rules, verify
from k8s.verify.live import check_live
from k8s.verify.located import read_folder, rendered
from k8s.verify.rule import Rule, Scope, Violation
from k8s.verify.run import Verified, explain_rule, verify_folder, verify_spec

__all__ = [
    "Rule",
    "Scope",
    "Verified",
    "Violation",
    "all_rules",
    "check_live",
    "explain_rule",
    "read_folder",
    "rendered",
    "verify",
    "verify_folder",
    "verify_spec",
]
