"""Manifests of a spec that demands signatures."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_plans import documents, pod, the_only
from releases import SHA256_OF_MAR, Release, verdict
from specs import ROOT

from marina.config.errors import ArchiveError
from marina.k8s.manifests.config_map import config_name
from marina.k8s.manifests.plan import Plan, make_plan

STORE = {"url": "https://store.local/digits.mar"}


@pytest.fixture
def release(tmp_path: Path) -> Release:
    release = Release(tmp_path)
    (tmp_path / "release.pub").write_text(release.public)
    return release


def planned(release: Release, *keys: str, **kubernetes: Any) -> Plan:
    """The plan, on a machine that has the records but no MAR: here it is none that TorchServe could read."""
    mar = release.build / "model.mar"
    away = mar.rename(release.out / "model.mar")
    try:
        return make_plan(release.spec(*keys, **kubernetes), release.build)
    finally:
        away.rename(mar)


def mounted(release: Release, **kubernetes: Any) -> tuple[dict[str, str], Any]:
    """What a pod mounts at `/config`, and its Deployment's pod."""
    plan = planned(release, str(release.out / "release.pub"), **kubernetes)
    data: dict[str, str] = the_only(plan, "ConfigMap", config_name(plan))["data"]
    return data, pod(plan)


def test_a_pod_gets_the_keys_and_the_signatures(release: Release) -> None:
    files = release.sign()
    data, spec = mounted(release)
    assert yaml.safe_load(data["spec.yaml"])["serving"]["verify"]["keys"] == [release.public]
    assert data["package.sigstore.json"] == files["package"].read_text()
    assert sorted(data) == ["package.sigstore.json", "spec.yaml", "verdict.sigstore.json"]
    (server,) = spec["containers"]
    assert server["args"] == [
        "/config/spec.yaml",
        "--mar",
        "/model/model.mar",
        "--signatures",
        "/config",
        "--host",
        "::",
    ]
    (config,) = (volume for volume in spec["volumes"] if volume["name"] == "config")
    assert sorted(item["path"] for item in config["configMap"]["items"]) == sorted(data)


def test_the_loader_checks_what_it_downloaded(release: Release, tmp_path: Path) -> None:
    release.sign()
    data, spec = mounted(release, model=STORE)
    (loader,) = spec["initContainers"]
    assert loader["args"][-2:] == ["--signed", "/config"]
    assert {"name": "config", "mountPath": "/config", "readOnly": True} in loader["volumeMounts"]
    # As it runs in a pod: with what is mounted, without what the spec's folder has.
    folder = tmp_path / "config"
    folder.mkdir()
    for name, text in data.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "marina.server.fetch", str(release.build / "model.mar")]
    command += ["--sha256", SHA256_OF_MAR, "--signed", str(folder)]
    assert subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode == 0
    (folder / "verdict.sigstore.json").unlink()
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == ArchiveError.exit_code
    assert f"error: {folder}: no signed verdict, which `serving.verify` demands" in done.stderr


def test_other_signatures_start_other_pods(release: Release) -> None:
    release.sign()
    before = mounted(release)[1]
    release.write("bom.json", {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "x"}]})
    release.sign()
    assert mounted(release)[1] == before  # the bill is not in it
    release.write("verdict.json", verdict() | {"at": "2026-11-29T10:00:00Z"})
    release.sign()
    assert mounted(release)[1] != before


def test_what_a_pod_would_refuse_is_not_rendered(release: Release) -> None:
    with pytest.raises(ArchiveError, match=r"no signed package, which `serving.verify` demands") as caught:
        mounted(release)
    assert caught.value.hint
    assert "marina sign" in caught.value.hint
    release.sign()
    assert documents(planned(release))
