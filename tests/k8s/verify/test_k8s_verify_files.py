import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
from k8s_plans import EVIDENCE, IMAGE, OBJECT, fill, written
from specs import DIGITS, ROOT, digits_spec

import marina
from marina.config.errors import InputError, SpecError
from marina.k8s.manifests.plan import make_plan
from marina.k8s.manifests.writing import write_manifests
from marina.k8s.verify.check import all_rules
from marina.k8s.verify.located import read_objects
from marina.k8s.verify.rule import Violation
from marina.k8s.verify.verification import verify_folder, verify_spec

FOREIGN = ROOT / "tests/foreign"
CHART = {
    "drain-missing",
    "image-digest",
    "policy-missing",
    "port-exposed",
    "reference-missing",
    "scratch-size",
    "token-mounted",
    "torchserve-token",
}


def rules_of(findings: list[Violation], level: str | None = None) -> set[str]:
    return {finding.rule for finding in findings if level in (None, finding.level)}


def test_what_torchserves_chart_renders_to_has_the_findings_one_would_expect() -> None:
    verified = verify_folder(FOREIGN / "chart")
    assert rules_of(verified.findings) == CHART | {"pdb-missing", "rollout-capacity"}
    assert rules_of(verified.findings, "error") == {"port-exposed"}
    exposed = [finding.text for finding in verified.findings if finding.rule == "port-exposed"]
    assert [text.split(",")[0] for text in exposed] == ["leads to 8081", "leads to 8082", "leads to 7070"]


def test_torchserves_way_of_scaling_has_the_findings_one_would_expect() -> None:
    findings = verify_folder(FOREIGN / "scaling").findings
    expected = {"api-version", "metric-counter", "scaler-safety-net", "scaler-target"}
    assert rules_of(findings) == expected
    counters = [
        (Path(finding.file).name, finding.line, finding.field)
        for finding in findings
        if finding.rule == "metric-counter"
    ]
    assert counters == [
        ("adapter.yaml", 9, "rules.external[0].metricsQuery"),
        ("hpa.yaml", 13, "spec.metrics[0].external.metric.name"),
    ]
    (old,) = [finding for finding in findings if finding.rule == "api-version"]
    assert old.text == (
        "got `autoscaling/v2beta2`, not in Kubernetes 1.30–1.37, allowed: `autoscaling/v1`, `autoscaling/v2`"
    )
    assert (old.line, old.hint) == (2, "apiVersion: autoscaling/v2")


def test_chart_and_autoscaler_are_checked_together() -> None:
    findings = verify_folder(FOREIGN).findings
    assert rules_of(findings) - CHART == {"api-version", "metric-counter", "replicas-owned", "scaler-safety-net"}


def test_every_file_of_objects_below_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".git").mkdir()
    written(
        tmp_path,
        one_yaml=f"---\n# nothing\n---\n{OBJECT}---\n{OBJECT.replace('a}', 'b}')}",
        two_json='{\n\t"apiVersion": "v1",\n\t"kind": "List",\n\t"items": [\n\t\t{"apiVersion": "v1",\n'
        '\t\t "kind": "Secret", "metadata": {"name": "c"}}]\n}\n'
        '  {"apiVersion": "v1", "kind": "Secret", "metadata":\n{"name": "e"}}\n',
        kustomization_yaml="resources: [one.yaml]\n",
        values_yaml="replicas: 2\n",
        notes_txt="not read",
    )
    written(tmp_path / "deep", three_yml=OBJECT.replace("a}", "d}"))
    written(tmp_path / ".git", four_yaml="{")
    documents = read_objects(tmp_path)
    places = [
        (document.reference, Path(document.file).name, document.root.at("metadata", "name").line)
        for document in documents
    ]
    assert places == [
        ("ConfigMap/d", "three.yml", 3),
        ("ConfigMap/a", "one.yaml", 6),
        ("ConfigMap/b", "one.yaml", 10),
        ("Secret/c", "two.json", 6),
        ("Secret/e", "two.json", 9),
    ]


def test_merged_yaml_values_are_read_with_their_lines(tmp_path: Path) -> None:
    text = f"{OBJECT}data: &first {{b: '1', d: 2021-01-01, e: =}}\nbinaryData:\n  <<: *first\n  b: '2'\n"
    (document,) = read_objects(written(tmp_path, a_yaml=text))
    assert document.data["binaryData"] == {"b": "2", "d": "2021-01-01", "e": "="}
    assert document.root.at("binaryData", "d").line == 4
    assert document.root.at("binaryData", "b").line == 7


@pytest.mark.parametrize(
    ("written_as", "read_as"),
    [
        ("10:30", "10:30"),
        ("22:30:00", "22:30:00"),
        ("0o644", 0o644),
        ("0644", 0o644),
        ("0899", 899),
        ("1e3", 1000),
        ("1.", 1),
        ("1_000", 1000),
        ("0x1F", 31),
        ("-1", -1),
        (".5", 0.5),
        ("1.2.3", "1.2.3"),
        ("12e", "12e"),
        ("y", True),
        ("off", False),
        ("~", None),
        ("!!binary aGVsbG8=", "hello"),
    ],
)
def test_plain_values_are_read_as_kubectl_reads_them(tmp_path: Path, written_as: str, read_as: object) -> None:
    (document,) = read_objects(written(tmp_path, a_yaml=f"{OBJECT}data:\n  a: {written_as}\n"))
    value = document.data["data"]["a"]
    assert (value, isinstance(value, bool)) == (read_as, isinstance(read_as, bool))


def test_lists_of_any_form_are_read_item_by_item(tmp_path: Path) -> None:
    inner = "  kind: List\n  items:\n  - {apiVersion: v1, kind: Secret, metadata: {name: c}}\n"
    documents = read_objects(
        written(
            tmp_path,
            a_yaml="apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n",
            b_yaml=f"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n{inner}",
            c_yaml="apiVersion: v1\nkind: List\nitems: []\n",
            d_yaml="apiVersion: example.org/v1\nkind: AllowList\nmetadata: {name: d}\n",
        )
    )
    places = [(document.reference, document.root.at("metadata", "name").line) for document in documents]
    assert places == [("ConfigMap/a", 4), ("ConfigMap/b", 5), ("Secret/c", 7), ("AllowList/d", 3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "kind: List\napiVersion: v1\nitems:\n- 1\n- {kind: A}\n",
            "a.yaml:4: not a Kubernetes object: `apiVersion`, `kind` missing",
            id="an item that is no object",
        ),
        pytest.param(
            "a: [1", "a.yaml:1: not readable as YAML: expected ',' or ']', but got '<stream end>'", id="no YAML"
        ),
        pytest.param("a: 1\n", "a.yaml:1: not a Kubernetes object: `apiVersion`, `kind` missing", id="no object"),
        pytest.param("- 1\n", "a.yaml:1: not a Kubernetes object: `apiVersion`, `kind` missing", id="a list"),
        pytest.param("kind: A\n", "a.yaml:1: not a Kubernetes object: `apiVersion` missing", id="no API version"),
        pytest.param(OBJECT + "kind: B\n", "a.yaml:4: `kind`: given twice, first on line 2", id="a key given twice"),
    ],
)
def test_a_file_that_holds_no_object_is_a_clear_error(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, a_yaml=text, b_yaml="{")
    with pytest.raises(SpecError) as caught:
        read_objects(tmp_path)
    lines = str(caught.value).split("\n\nhint")[0].replace(f"{tmp_path}/", "").splitlines()
    assert lines[0] == said
    assert lines[-1].startswith("b.yaml:1: not readable as YAML")


def test_a_folder_without_objects_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no objects in it, allowed: files that end in "):
        read_objects(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_objects(tmp_path / "none")


@pytest.mark.slow
def test_written_manifests_are_verified_with_the_lines_of_their_files(tmp_path: Path) -> None:
    spec = digits_spec()
    build = tmp_path
    fill(build, spec, evidence=EVIDENCE, image=IMAGE)
    write_manifests(make_plan(spec, build), build)
    assert verify_spec(spec, build).to_data() | {"origin": ""} == {
        "schema": "marina.verify/1", "origin": "", "objects": 11, "rules": len(all_rules()), "errors": 0, "warnings": 0,
        "versions": [f"1.{minor}" for minor in range(30, 38)], "notes": [], "findings": [],
    }  # fmt: skip
    file = build / "manifests/60-disruption-budget.yaml"
    text = file.read_text(encoding="utf-8").replace("maxUnavailable: 1", "maxUnavailable: 0")
    file.write_text(text, encoding="utf-8")
    verified = verify_spec(spec, build)
    (finding,) = verified.findings
    assert (finding.rule, finding.file) == ("pdb-blocks-drain", str(file))
    assert text.splitlines()[finding.line - 1].strip() == "maxUnavailable: 0"
    assert verified.notes == [
        f"{build}/manifests is out of date, the spec now renders something else: marina manifests {spec.file}"
    ]


def test_a_spec_that_needs_a_newer_kubernetes_is_not_checked_against_older_ones(tmp_path: Path) -> None:
    spec = digits_spec({"kubernetes.model": {"image": "registry.local/models:1"}})
    fill(tmp_path, spec, image=IMAGE)
    verified = verify_spec(spec, tmp_path)
    assert verified.versions[0] == make_plan(spec, tmp_path).oldest_kubernetes > "1.30"
    assert verified.notes == [f"the spec needs Kubernetes {verified.versions[0]} or later"]
    with pytest.raises(InputError, match=r"`--kubernetes`: the spec needs 1\.\d\d or later"):
        verify_spec(spec, tmp_path, ["1.30"])


def test_the_verb_prints_findings_and_counts_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", "--dir", str(FOREIGN / "scaling"), "--kubernetes", "1.34"]) == 1
    printed = capsys.readouterr()
    assert f"error: {FOREIGN}/scaling/hpa.yaml:13: HorizontalPodAutoscaler/torchserve: " in printed.out
    assert printed.out.splitlines()[-1] == (
        f"2 objects of {FOREIGN}/scaling, Kubernetes 1.34, {len(all_rules())} rules: 3 errors, 2 warnings"
    )
    assert [line.split()[:2] for line in printed.err.splitlines()] == [
        ["Kubernetes", "1.34"],
        [str(len(all_rules())), "rules"],
    ]


def test_the_verb_as_json_is_one_record_and_warnings_exit_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {version: a}, ports: [{port: 8}]}\n"
    written(tmp_path, a_yaml=text)
    assert marina.main(["verify", "--dir", str(tmp_path), "--json", "--quiet"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["objects"], record["errors"], record["warnings"]) == (1, 0, 1)
    (finding,) = record["findings"]
    assert finding["rule"] == "selector-changes"
    assert (finding["object"], finding["field"], finding["line"]) == ("Service/a", "spec.selector.version", 4)
    assert finding["hint"] == "delete `version` from the selector"


def test_a_spec_alone_is_verified_as_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--quiet"]) == 0
    assert f"objects of {DIGITS}, as rendered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kubernetes", "2.0"], "error: `--kubernetes`: got `2.0`, allowed: `1.30`"),
        (["--kubernetes", "1.99"], "error: `--kubernetes`: got `1.99`, allowed: "),
        (["--kubernetes", "34"], "error: `--kubernetes`: got `34`, allowed: `1.30`"),
        (["--explain", "pdb-blocks"], "error: `--explain`: got `pdb-blocks`, did you mean `pdb-blocks-drain`?"),
        (
            ["--dir", ".", "--live", "http://x"],
            "error: `--live`: not together with `--dir`, because there is no spec to compare with",
        ),
    ],
)
def test_wrong_options_exit_with_2(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["verify", str(DIGITS), "--out", str(tmp_path), "--quiet", *arguments]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_rule_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["verify", "--explain", "metric-counter"]) == 0
    assert capsys.readouterr().out.startswith("metric-counter (error)\n  An autoscaler compares a counter")


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
