from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, planned

from marina.config.errors import InputError
from marina.config.progress import Progress
from marina.k8s.platforms import diff_folder, write_format

QUIET = Progress(quiet=True)
RECORDS: dict[str, Any] = {"evidence": EVIDENCE, "image": IMAGE}


@pytest.mark.parametrize("output_format", ["files", "single", "helm", "kserve"])
def test_files_just_written_do_not_differ_and_those_of_another_spec_do(output_format: str, tmp_path: Path) -> None:
    plan = planned({}, **RECORDS)
    folder = write_format(plan, tmp_path, output_format, QUIET).folder
    assert diff_folder(plan, output_format, folder, QUIET) == {}
    changed = planned({"kubernetes.resources.memory": "3Gi"}, **RECORDS)
    (diff,) = diff_folder(changed, output_format, folder, QUIET).values()
    assert "3Gi" in diff or "3072" in diff


def test_a_file_that_is_edited_missing_or_no_longer_rendered_is_a_difference(tmp_path: Path) -> None:
    plan = planned({}, **RECORDS)
    folder = write_format(plan, tmp_path, "files", QUIET).folder
    (folder / "50-service.yaml").unlink()
    (folder / "40-deployment.yaml").write_text("kind: Edited\n", encoding="utf-8")
    stale = (folder / "70-autoscaler.yaml").read_text(encoding="utf-8")
    (folder / "71-old.yaml").write_text(stale, encoding="utf-8")
    # A file that Marina did not write.
    (folder / "README.md").write_text("ours", encoding="utf-8")
    diffs = diff_folder(plan, "files", folder, QUIET)
    assert list(diffs) == ["40-deployment.yaml", "50-service.yaml", "71-old.yaml"]
    assert "-kind: Edited" in diffs["40-deployment.yaml"]
    assert "+kind: Service" in diffs["50-service.yaml"]
    assert "-kind: HorizontalPodAutoscaler" in diffs["71-old.yaml"]


def test_a_last_line_without_its_end_is_shown_as_a_difference(tmp_path: Path) -> None:
    plan = planned({}, **RECORDS)
    folder = write_format(plan, tmp_path, "files", QUIET).folder
    file = folder / "50-service.yaml"
    file.write_text(file.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8")
    (diff,) = diff_folder(plan, "files", folder, QUIET).values()
    assert diff.endswith("\n+")


def test_a_template_of_a_chart_that_is_no_longer_rendered_is_a_difference(tmp_path: Path) -> None:
    folder = write_format(planned({"scaling.autoscaler": "keda"}, **RECORDS), tmp_path, "helm", QUIET).folder
    diffs = diff_folder(planned({}, **RECORDS), "helm", folder, QUIET)
    assert "templates/keda-scaled-object.yaml" in diffs


def test_a_missing_folder_is_an_error_with_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        diff_folder(planned({}), "helm", tmp_path / "nowhere", QUIET)
    assert "no such folder" in caught.value.message
    assert "--format helm" in str(caught.value.hint)
