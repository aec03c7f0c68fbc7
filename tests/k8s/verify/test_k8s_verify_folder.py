"""The folder that Marina wrote, and the verb."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, fill
from specs import DIGITS, digits_spec

import marina
from marina.config.errors import InputError, SpecError
from marina.k8s.manifests.plan import make_plan
from marina.k8s.manifests.writing import write_manifests
from marina.k8s.verify import all_rules, verify_spec
from marina.k8s.verify.rule import Violation


def written(build: Path, changes: dict[str, Any] | None = None, layout: Any = "files") -> Path:
    """The folder of manifests that a spec with these changes writes."""
    spec = digits_spec(changes)
    fill(build, spec, evidence=EVIDENCE, image=IMAGE)
    return write_manifests(make_plan(spec, build), build, layout).folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def found(build: Path) -> list[Violation]:
    return verify_spec(digits_spec(), build, ["1.37"]).findings


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["files", "single"])
def test_what_was_just_written_has_no_finding(layout: str, tmp_path: Path) -> None:
    folder = written(tmp_path, layout=layout)
    assert verify_spec(digits_spec(), tmp_path).to_data() == {
        "schema": "marina.verify/1", "origin": str(folder), "objects": 11, "rules": len(all_rules()), "errors": 0,
        "warnings": 0, "versions": [f"1.{minor}" for minor in range(30, 38)], "notes": [], "findings": [],
    }  # fmt: skip


def test_an_edit_is_named_with_its_line_beside_the_harm_that_it_does(tmp_path: Path) -> None:
    file = written(tmp_path) / "60-disruption-budget.yaml"
    edit(file, "maxUnavailable: 1", "maxUnavailable: 0")
    edited, harm = found(tmp_path)
    assert file.read_text(encoding="utf-8").splitlines()[edited.line - 1].strip() == "maxUnavailable: 0"
    assert (edited.rule, edited.level, harm.rule, harm.level) == (
        "folder-edited", "warning", "pdb-blocks-drain", "error",
    )  # fmt: skip
    place = f"{file}:{edited.line}: PodDisruptionBudget/digits: `spec.maxUnavailable`"
    assert str(edited) == f"{place}: got `0`, the spec renders `1`"
    assert str(harm) == (
        f"{place}: keeps 2 of 2 pods, as `spec.minReplicas` of HorizontalPodAutoscaler/digits is 2: none can be evicted"
    )


def test_what_was_added_doubled_or_deleted_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "50-service.yaml").unlink()
    account = (folder / "10-service-account.yaml").read_text(encoding="utf-8")
    (folder / "11-again.yaml").write_text(account, encoding="utf-8")
    (folder / "12-more.json").write_text('{"apiVersion": "example.org/v1", "kind": "Own", "metadata": {"name": "a"}}')
    edit(folder / "70-autoscaler.yaml", "minReplicas: 2\n", "minReplicas: 3\n  more: 1\n")
    told = {(finding.rule, finding.object, finding.text) for finding in found(tmp_path)}
    assert told == {
        ("folder-edited", "Service/digits", "is missing in the folder"),
        ("folder-edited", "ServiceAccount/digits", "is here twice"),
        ("folder-edited", "Own/a", "is not what the spec renders"),
        (
            "folder-edited",
            "HorizontalPodAutoscaler/digits",
            "got `3`, the spec renders `2`; 1 more fields differ",
        ),
        ("schema", "HorizontalPodAutoscaler/digits", "unknown field"),
    }


@pytest.mark.slow
def test_a_folder_of_an_older_spec_or_package_is_out_of_date(tmp_path: Path) -> None:
    written(tmp_path, {"serving.queue": 100, "scaling.max_replicas": 4})
    told = {(finding.rule, finding.object) for finding in found(tmp_path)}
    assert ("origin-differs", "Deployment/digits") in told
    assert ("folder-edited", "HorizontalPodAutoscaler/digits") in told
    # The name of the ConfigMap is made from its content.
    assert sum(rule == "folder-edited" and name.startswith("ConfigMap/") for rule, name in told) == 2


def test_without_the_deployment_the_rest_is_still_checked(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "40-deployment.yaml").unlink()
    edit(folder / "50-service.yaml", "ports:", "portz:")
    assert {finding.rule for finding in found(tmp_path)} == {"folder-edited", "origin-differs", "schema"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "a.yaml:1: not readable as YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n", "a.yaml:1: not a Kubernetes object: `apiVersion` or `kind` missing"),
        ("- 1\n", "a.yaml:1: not a Kubernetes object: `apiVersion` or `kind` missing"),
        ("apiVersion: v1\nkind: A\nkind: B\n", "a.yaml:3: `kind`: given twice, first on line 2"),
        ("a: \udc80", "a.yaml:1: not readable: 'utf-8' codec can't decode"),
    ],
    ids=["no YAML", "no object", "a list", "a key given twice", "no text"],
)
def test_a_file_that_holds_no_object_is_a_clear_error(text: str, said: str, tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "a.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
    (folder / "b.yaml").write_text("{", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        found(tmp_path)
    lines = str(caught.value).split("\n\nhint")[0].replace(f"{folder}/", "").splitlines()
    assert lines[0].startswith(said)
    assert lines[-1].startswith("b.yaml:1: not readable as YAML")


def test_a_folder_without_objects_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, digits_spec(), evidence=EVIDENCE, image=IMAGE)
    (tmp_path / "manifests").mkdir()
    with pytest.raises(InputError, match="no objects in it"):
        found(tmp_path)


def test_a_spec_that_needs_a_newer_kubernetes_is_not_checked_against_older_ones(tmp_path: Path) -> None:
    spec = digits_spec({"kubernetes.model": {"image": "registry.local/models:1"}})
    fill(tmp_path, spec, image=IMAGE)
    verified = verify_spec(spec, tmp_path)
    assert verified.versions[0] == make_plan(spec, tmp_path).oldest_kubernetes > "1.30"
    assert verified.notes == [f"the spec needs Kubernetes {verified.versions[0]} or later"]
    with pytest.raises(InputError, match=r"`--kubernetes`: the spec needs 1\.\d\d or later"):
        verify_spec(spec, tmp_path, ["1.30"])


def test_the_verb_prints_findings_and_counts_and_exits_with_1_for_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits").mkdir()
    file = written(tmp_path / "digits") / "50-service.yaml"
    typed = ["verify", str(DIGITS), "--out", str(tmp_path), "--kubernetes", "1.34", "--kubernetes", "1.33"]
    edit(file, "targetPort: inference", 'targetPort: inferense\n    colour: "a\\e[2J"')
    assert marina.main(typed) == 1
    printed = capsys.readouterr()
    assert f"error: {file}:" in printed.out
    assert "(port-unknown)\n  hint: targetPort: inference\n" in printed.out
    assert "\x1b" not in printed.out
    assert printed.out.splitlines()[-1] == (
        f"11 objects of {file.parent}, Kubernetes 1.33–1.34, {len(all_rules())} rules: 2 errors, 1 warning"
    )
    assert printed.err.split()[:2] == [str(len(all_rules())), "rules"]


def test_the_verb_as_json_is_one_record_and_warnings_exit_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits").mkdir()
    edit(written(tmp_path / "digits") / "50-service.yaml", "type: ClusterIP", "type: NodePort")
    assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--json", "--quiet"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["objects"], record["errors"], record["warnings"]) == (11, 0, 1)
    (finding,) = record["findings"]
    assert (finding["rule"], finding["object"], finding["field"]) == ("folder-edited", "Service/digits", "spec.type")
    assert finding["hint"].startswith("`marina manifests SPEC` writes the folder again")


def test_a_spec_alone_is_verified_as_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--quiet"]) == 0
    assert f"objects of {DIGITS}, as rendered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kubernetes", "2.0"], "error: `--kubernetes`: got `2.0`, allowed: `1.30`"),
        (["--kubernetes", "1.99"], "error: `--kubernetes`: got `1.99`, allowed: `1.30`"),
        (["--explain", "pdb-blocks"], "error: `--explain`: got `pdb-blocks`, did you mean `pdb-blocks-drain`?"),
    ],
)
def test_wrong_options_exit_with_2(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--quiet", *arguments]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_rule_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", "--explain", "metric-adapter"]) == 0
    assert capsys.readouterr().out.startswith(
        "metric-adapter (error)\n  No rule of prometheus-adapter makes the metric"
    )


def test_an_address_that_does_not_speak_http_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Noise(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"\x16\x03\x01 no http\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Noise) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--quiet", "--live", url]) == 2
        server.shutdown()
    said = capsys.readouterr().err
    assert "/metrics: no metrics page there: " in said
    assert f"hint: marina serve {DIGITS} --out {tmp_path}; its pages are ten ports above the inference port" in said


@pytest.mark.slow
def test_a_live_server_must_export_the_metrics_that_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'# TYPE marina_ready gauge\nmarina_ready{model="digits"} 1\n')

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code = marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--json", "--quiet", "--live", url])
        server.shutdown()
    record = json.loads(capsys.readouterr().out)
    missing = {finding["object"] for finding in record["findings"] if finding["rule"] == "metric-missing"}
    assert code == 1
    assert "ts_inference_requests_total" in missing
    assert "marina_ready" not in missing
    assert record["notes"][-1] == f"{url}: its metrics were checked too"
