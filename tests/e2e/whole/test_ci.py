"""A pull request is judged as GitHub's runner does it: by the action's script, in a clone of a user's repository."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from json_server import answering
from repository import Repository
from specs import ROOT

ACTION = ROOT / "docker/ci/action.yml"
pytestmark = pytest.mark.e2e


class Runner:
    """Runs the action's own script with what a runner sets."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.repository = Repository(folder, pause_ms=20)
        self.repository.change(kind)
        self.summary, self.outputs, self.event = (folder / name for name in ("summary", "outputs", "event.json"))
        self.event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": "abc"}}}))

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        action = yaml.safe_load(ACTION.read_text())
        (step,) = (step for step in action["runs"]["steps"] if step.get("id") == "judge")
        given = {name: str(told["default"]) for name, told in action["inputs"].items()} | inputs
        environment = {name: _filled(value, given) for name, value in step["env"].items()}
        environment |= {
            **os.environ,
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            "GITHUB_ACTIONS": "true",
            "GITHUB_BASE_REF": "main",
            "GITHUB_REPOSITORY": "shop/digits",
            "GITHUB_EVENT_PATH": str(self.event),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.outputs),
        }
        environment |= inputs
        command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        return subprocess.run(
            command, cwd=self.repository.folder, env=environment, capture_output=True, text=True, check=False
        )


def _filled(value: str, inputs: dict[str, str]) -> str:
    name = value.removeprefix("${{ inputs.").removesuffix(" }}")
    return inputs[name]


@contextmanager
def github(status: int) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """GitHub's API, which lets a token write or not, and what was written."""
    written: list[tuple[str, dict[str, Any]]] = []

    def post(path: str, body: bytes, _: str) -> tuple[int, dict[str, Any]]:
        if status < 300:
            written.append((path, json.loads(body)))
        return status, {}

    with answering(lambda _: [], post) as port:
        yield f"http://127.0.0.1:{port}", written


def test_a_change_that_packages_to_the_same_bytes_passes_at_once(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "docs")
    with github(201) as (api, written):
        done = runner.run(SPEC="digits/spec.yaml", GITHUB_API_URL=api, GITHUB_TOKEN="t")
    assert done.returncode == 0, done.stderr
    assert "digits: PASS" in runner.summary.read_text()
    assert "verdict=PASS" in runner.outputs.read_text()
    (check_at, check), (comment_at, comment) = written
    assert (check_at, check["conclusion"]) == ("/repos/shop/digits/check-runs", "success")
    assert comment_at == "/repos/shop/digits/issues/7/comments"
    assert "the same, byte for byte" in comment["body"]


@pytest.mark.alone
def test_wrong_answers_fail_with_a_table_and_junit(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "wrong")
    with github(403) as (api, written):
        done = runner.run(SPEC="digits/spec.yaml", MAX_DURATION="60", GITHUB_API_URL=api, GITHUB_TOKEN="t")
    assert done.returncode == 1, done.stderr
    summary = runner.summary.read_text()
    assert "digits: FAIL" in summary
    assert "| answers at least 99 % the same |" in summary
    assert "`answers-differ`" in summary
    assert "::error title=digits: FAIL::" in done.stderr
    assert "note: no comment: this token may not write (403)" in done.stderr
    assert written == []
    suite = ElementTree.parse(runner.repository.folder / "build/digits/compare.xml").getroot()
    assert any(case.find("failure") is not None for case in suite.iter("testcase"))


def test_a_package_that_fails_is_said_and_red(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "docs")
    runner.repository.spec.write_text(runner.repository.spec.read_text().replace("height: 8", "height: eight"))
    done = runner.run(SPEC="digits/spec.yaml", COMMENT="false")
    assert done.returncode == 2
    assert "`model.image.height`: got `eight`" in runner.summary.read_text()


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0), (70, 70)])
def test_only_a_measurement_that_cannot_be_trusted_is_not_red(tmp_path: Path, code: int, ends: int) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run([str(ACTION.parent / "judge.sh")], env=environment, check=False).returncode == ends


def test_gitlabs_component_treats_it_the_same() -> None:
    inputs, job = yaml.safe_load_all((ACTION.parent / "gitlab.yml").read_text())
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(job)))
    assert used == set(inputs["spec"]["inputs"])
    assert job["marina"]["allow_failure"] == {"exit_codes": [3]}
