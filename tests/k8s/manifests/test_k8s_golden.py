from pathlib import Path

import pytest
import yaml
from golden import GOLDEN, check_golden
from k8s_plans import EVIDENCE, FULL, IMAGE, OPENSHIFT, planned, the_only

from marina.k8s.manifests.writing import write_manifests

# Rules and the dashboard have tests of their own; here they would change with every word.
ELSEWHERE = {"dashboard.yaml", "rules.yaml"}


@pytest.mark.parametrize(
    ("name", "changes", "form"),
    [
        ("manifests", {}, "files"),
        ("manifests-with-everything", FULL, "single"),
        ("manifests-for-openshift", OPENSHIFT, "files"),
    ],
)
def test_the_manifests_equal_the_golden_files(name: str, changes: dict[str, object], form: str, tmp_path: Path) -> None:
    write_manifests(planned(changes, evidence=EVIDENCE, image=IMAGE), tmp_path, form)  # type: ignore[arg-type]
    written = [file for file in sorted((tmp_path / "manifests").rglob("*")) if file.is_file()]
    for file in written:
        if file.name not in ELSEWHERE and file.parent.name != "monitoring":
            check_golden(file.read_text(encoding="utf-8"), GOLDEN / name / file.relative_to(tmp_path / "manifests"))
    accepted = {file.relative_to(GOLDEN / name) for file in (GOLDEN / name).rglob("*") if file.is_file()}
    assert accepted <= {file.relative_to(tmp_path / "manifests") for file in written}


def test_the_alert_for_a_busy_cpu_equals_the_golden_file() -> None:
    """It fires above what the autoscaler tolerates, and only after longer than more pods take to start."""
    rules = the_only(planned(evidence=EVIDENCE, image=IMAGE), "PrometheusRule")["spec"]["groups"]
    (alert,) = (rule for group in rules for rule in group["rules"] if rule.get("alert") == "MarinaCpuHigh")
    check_golden(yaml.safe_dump(alert, sort_keys=False), GOLDEN / "alerts/cpu-high.yaml")
