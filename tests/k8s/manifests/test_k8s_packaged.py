"""A plan refuses a package that was made before the spec changed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import RECORD, fill
from specs import digits_spec

from marina.config.errors import ArchiveError
from marina.config.render import render_model_config
from marina.k8s.manifests.plan import make_plan


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kubernetes.resources.cpu": 4}, "`minWorkers` is 2, now 4, `maxWorkers` is 2, now 4"),
        ({"serving.workers": 1}, "`threads` is 1, now 2, `minWorkers` is 2, now 1, `maxWorkers` is 2, now 1"),
    ],
)
def test_a_package_with_other_settings_than_the_spec_is_refused(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    fill(tmp_path, digits_spec())
    spec = digits_spec(changes)
    with pytest.raises(ArchiveError) as caught:
        make_plan(spec, tmp_path)
    assert caught.value.message == f"{tmp_path}/model.mar: packaged before the spec changed: {text}"
    assert caught.value.hint == f"marina package {spec.file}"


def test_a_package_with_its_mar_is_compared_in_all_settings(tmp_path: Path) -> None:
    fill(tmp_path, digits_spec())
    for text in ("useVenv: !!bool x", "a: &a [*a]", "- 1"):
        with zipfile.ZipFile(tmp_path / "model.mar", "w") as archive:
            archive.writestr("model-config.yaml", text)
            archive.writestr(RECORD["sample"]["file"], b"")
        with pytest.raises(ArchiveError, match=r"model.mar: `model-config.yaml`:1: "):
            make_plan(digits_spec(), tmp_path)
    with zipfile.ZipFile(tmp_path / "model.mar", "w") as archive:
        archive.writestr("model-config.yaml", render_model_config(digits_spec()))
        archive.writestr(RECORD["sample"]["file"], b"")
    assert make_plan(digits_spec(), tmp_path).package is not None
    with pytest.raises(ArchiveError, match=r"packaged before the spec changed: `jobQueueSize` is 200, now 300"):
        make_plan(digits_spec({"serving.queue": 300}), tmp_path)


@pytest.mark.parametrize(
    ("isa", "selector"),
    [(["avx2", "fma"], {"kubernetes.io/arch": "amd64"}), (["asimd", "sve"], {"kubernetes.io/arch": "arm64"}), ([], {})],
)
def test_pods_of_a_package_for_this_machines_cpu_run_on_nodes_of_its_architecture(
    isa: list[str], selector: dict[str, str], tmp_path: Path
) -> None:
    fill(tmp_path, digits_spec())
    package = json.loads((tmp_path / "package.json").read_text())
    package["record"]["key"]["isa"] = isa
    (tmp_path / "package.json").write_text(json.dumps(package))
    assert make_plan(digits_spec(), tmp_path).node_selector == selector
