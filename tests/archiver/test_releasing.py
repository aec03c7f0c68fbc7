"""What an approver reads of a release."""

import json
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE
from releases import SHA256_OF_MAR, Release, verdict
from specs import digits_spec

from marina.archiver.releasing import Release as Described
from marina.archiver.releasing import describe_release
from marina.config.record import file_sha256
from marina.config.spec import Spec


@pytest.fixture
def release(tmp_path: Path) -> Release:
    release = Release(tmp_path)
    release.write("evidence.json", EVIDENCE | {"package": SHA256_OF_MAR})
    return release


def described(release: Release, spec: Spec | None = None, at: str = "2026-11-28T10:00:00Z") -> Described:
    return describe_release(spec or digits_spec(), release.build, at)


def page(release: Release) -> str:
    return (release.build / "release.html").read_text()


def test_a_whole_release_says_what_is_known_of_it(release: Release) -> None:
    release.sign()
    gate: dict[str, Any] = {"status": "PASS", "text": "p99 1.02 of 1.2", "verdict": {}}
    image = f"{IMAGE['ref']}:1.0@{IMAGE['digest']}"
    release.write("rollout.json", {"gate": gate, "image": image})
    told = described(release, release.spec())
    assert (told.exit_code, told.missing, told.status) == (0, (), "PASS")
    assert told.facts["Package"]["agreement"] == "1.0000 (top-1 on 1 calibration inputs)"
    assert told.facts["Capacity"]["highest rate that meets the objective"] == "1.23e+03 requests/s per pod"
    assert told.facts["Gate"] == {"verdict": "PASS", "said": "p99 1.02 of 1.2"}
    assert told.facts["Signatures"] == {"demanded by": "key 1", "accepted": "as a pod would"}
    for text in ("PASS", SHA256_OF_MAR, image, "p99 1.02 of 1.2", "20 ms", "No release before this one"):
        assert text in page(release)
    assert json.loads((release.build / "release.json").read_text()) == told.to_data()


def test_what_is_missing_is_named_with_what_to_type(release: Release) -> None:
    for name in ("verdict.json", "evidence.json", "image.json"):
        (release.build / name).unlink()
    told = described(release, release.spec())
    assert told.exit_code == 1
    assert [gap.text.partition(":")[0] for gap in told.missing] == [
        "no load test of this package",
        "no calibration of this package",
        "no image of this package was pushed",
        "pods would refuse it",
    ]
    assert "marina loadtest" in page(release)
    assert "UNTESTED" in page(release)


@pytest.mark.parametrize(("status", "code"), [("FAIL", 1), ("INVALID", 3)])
def test_the_verdict_is_the_release_s(release: Release, status: str, code: int) -> None:
    release.write("verdict.json", verdict(status))
    assert described(release).exit_code == code
    assert f'class="badge {status}"' in page(release)


def test_a_gate_of_another_image_says_nothing_of_this_one(release: Release) -> None:
    release.write("rollout.json", {"gate": {"status": "PASS", "text": "", "verdict": {}}, "image": "other:1@sha256:0"})
    assert "Gate" not in described(release).facts


def test_it_lists_what_changed_since_the_release_before(release: Release) -> None:
    described(release, at="2026-11-01T00:00:00Z")
    (release.build / "model.mar").write_bytes(b"another")
    package = json.loads((release.build / "package.json").read_text())
    sha256 = file_sha256(release.build / "model.mar")
    release.write("package.json", package | {"sha256": sha256})
    release.write("verdict.json", verdict(package=sha256))
    release.write("image.json", IMAGE | {"package_sha256": sha256})
    components = [{"name": "torch", "version": "2.13.0"}]
    release.write("bom.json", {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": components})
    told = described(release, digits_spec({"slo.p99_ms": 60}), at="2026-11-02T00:00:00Z")
    assert told.before == SHA256_OF_MAR
    changed = {change.what: (change.before, change.now) for change in told.changed}
    assert changed["spec: slo.p99_ms"] == ("50.0", "60.0")
    assert changed["image: torch"] == (None, "2.13.0")
    assert changed["package: sha256"] == (SHA256_OF_MAR, sha256)
    assert "spec: slo.p99_ms" in page(release)
    # Described again, it is still compared with the one before, and not with itself.
    assert described(release, digits_spec({"slo.p99_ms": 60}), at="2026-11-03T00:00:00Z").before == SHA256_OF_MAR
