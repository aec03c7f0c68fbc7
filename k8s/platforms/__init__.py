"""The same objects for platforms other than kubectl: as a Helm chart, for KServe, for Argo Rollouts or Flagger; and the
check whether committed files still match what the spec renders."""

from marina.k8s.platforms.formats import diff_folder, plan_for, write_format

__all__ = ["diff_folder", "plan_for", "write_format"]
