"""Checks what Marina rendered, after the spec's patches, and the folder that it wrote, without a cluster: against
schemas, rules, and the metrics of a running server."""

from marina.k8s.verify.verification import all_rules, explain_rule, verify, verify_spec

__all__ = ["all_rules", "explain_rule", "verify", "verify_spec"]
