from pathlib import Path

import pytest
from linting import CLEAN_MODEL_CONFIG, CLEAN_PROPERTIES, DEFAULT_WORKERS, cases, changed, lint, only

from marina.config.errors import InputError
from marina.config.lint import lint_file
from marina.config.lint.torchserve_keys import TORCHRUN


@pytest.mark.parametrize(("rule", "level", "lines", "text", "hint"), cases("lint_properties.txt"))
def test_lines_of_config_properties_break_one_rule(
    tmp_path: Path, rule: str, level: str, lines: str, text: str, hint: str
) -> None:
    content, number = changed(CLEAN_PROPERTIES, lines, "=")
    finding = only(lint(tmp_path, content, "config.properties"))
    assert (finding.rule, finding.level, finding.line, finding.text, finding.hint) == (rule, level, number, text, hint)


@pytest.mark.parametrize(("rule", "level", "lines", "text", "hint"), cases("lint_model_config.txt"))
def test_lines_of_model_config_break_one_rule(
    tmp_path: Path, rule: str, level: str, lines: str, text: str, hint: str
) -> None:
    content, number = changed(CLEAN_MODEL_CONFIG, lines, ":")
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level, finding.line, finding.text, finding.hint) == (rule, level, number, text, hint)


@pytest.mark.parametrize(
    ("missing", "rule", "text", "hint"),
    [
        (
            "metrics_mode",
            "metrics-mode",
            "not set, so it is `log` and `/metrics` answers with an empty page",
            "metrics_mode=prometheus",
        ),
        (
            "allowed_urls",
            "allowed-urls",
            "not set, so models may be loaded from any URL",
            "allowed_urls=file:///home/model-server/model-store/.*",
        ),
        (
            "disable_token_authorization",
            "token-auth",
            "not set, so every call needs a token, even `/ping`, so probes get 400, and each replica has tokens of "
            "its own",
            "disable_token_authorization=true, and let the gateway and a NetworkPolicy guard the ports",
        ),
        (
            "model_store",
            "model-store",
            "not set, so TorchServe stops at its start unless the command line names it",
            "model_store=<folder>",
        ),
    ],
)
def test_a_key_missing_from_config_properties(tmp_path: Path, missing: str, rule: str, text: str, hint: str) -> None:
    content = "".join(line for line in CLEAN_PROPERTIES.splitlines(True) if not line.startswith(missing))
    finding = only(lint(tmp_path, content, "config.properties"))
    expected = (rule, "warning", 1, missing, text, hint)
    assert (finding.rule, finding.level, finding.line, finding.key, finding.text, finding.hint) == expected


RESET = "not set, so it is 120 seconds, whatever config.properties and the register call say"


@pytest.mark.parametrize(
    ("missing", "rule", "level", "text", "hint"),
    [
        (
            "minWorkers",
            "workers",
            "error",
            f"`minWorkers` is not set, and without it `maxWorkers` is ignored: {DEFAULT_WORKERS}",
            "minWorkers: 2",
        ),
        (
            "maxWorkers",
            "workers",
            "error",
            f"`maxWorkers` is not set, and without it `minWorkers` is ignored: {DEFAULT_WORKERS}",
            "maxWorkers: 2",
        ),
        ("batchSize", "batch-size", "warning", "not set, so it is 1: nothing is batched", "batchSize: 8"),
        ("responseTimeout", "timeout-reset", "warning", RESET, "responseTimeout: 120"),
        ("startupTimeout", "timeout-reset", "warning", RESET, "startupTimeout: 120"),
    ],
)
def test_a_key_missing_from_model_config(
    tmp_path: Path, missing: str, rule: str, level: str, text: str, hint: str
) -> None:
    content = "".join(line for line in CLEAN_MODEL_CONFIG.splitlines(True) if not line.startswith(missing))
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level, finding.line, finding.text, finding.hint) == (rule, level, 1, text, hint)


def test_a_model_config_without_workers_starts_the_default_number(tmp_path: Path) -> None:
    content = "".join(line for line in CLEAN_MODEL_CONFIG.splitlines(True) if "Workers" not in line)
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level) == ("workers", "warning")
    assert finding.text == f"neither it nor `maxWorkers` is set: {DEFAULT_WORKERS}"


def test_clean_files_have_no_findings(tmp_path: Path) -> None:
    assert lint(tmp_path, CLEAN_PROPERTIES, "config.properties") == []
    assert lint(tmp_path, CLEAN_MODEL_CONFIG, "model-config.yml") == []


@pytest.mark.parametrize(
    "lines",
    [
        "keystore_pass=$$KEYSTORE_PASS$$",
        "metrics_mode= Prometheus ",
        "token_expiration_min= 5.5 ",
        "job_queue_size=+5",
        "enable_metrics_api=FALSE\nmetrics_mode=log",
        "enable_envvars_config=true\nuse_env_allowed_urls=true",
        "management_address=unix:/tmp/management.sock",
        "certificate_file=/a.pem\nprivate_key_file=/b.pem\ninference_address=https://0.0.0.0:8443",
        'models={"m":{"1.0":{"batchSize":"8","defaultVersion":true,"marName":"m.mar"}}}',
        "! a comment\n# another",
        "enable_metrics_api=false\nmetrics_address=http://127.0.0.1:8080",
        "inference_address=http://127.0.0.1:8081",
        "inference_address=http://10.0.0.1:8081\ndisable_token_authorization=true",
        "inference_address=unix:/tmp/inference.sock",
        "management_address=http://127.0.0.1",
        "keystore=/k.p12\ninference_address=https://0.0.0.0:8443",
        "blacklist_env_vars=(AWS_.*|.*$SECRET)",
        "prefer_direct_buffer=false ",
        "vmargs=-Xmx1g ",
        "metrics_config=/caf\\u00e9/metrics.yaml",
    ],
)
def test_settings_that_torchserve_reads_well_have_no_findings(tmp_path: Path, lines: str) -> None:
    content, _ = changed(CLEAN_PROPERTIES, lines, "=")
    assert lint(tmp_path, content, "config.properties") == []


@pytest.mark.parametrize(
    "lines",
    [
        "deviceType: GPU\ndeviceIds: [0, 1]",
        "batchSize: 1\nuseJobTicket: on",
        "parallelType: tp\ntorchrun: {nproc-per-node: 2}",
        "jobQueueSize: 0x10",
        "sequenceBatching: true\nsequenceMaxIdleMSec: 1000",
        "pt2: {compile: {enable: true}}",
        "batchSize: 1\nasyncCommunication: true",
        "parallelType: custom\nparallelLevel: 2",
    ],
)
def test_settings_of_a_model_config_that_are_allowed_have_no_findings(tmp_path: Path, lines: str) -> None:
    content, _ = changed(CLEAN_MODEL_CONFIG, lines, ":")
    assert lint(tmp_path, content, "model-config.yaml") == []


def test_models_without_load_models_loads_nothing(tmp_path: Path) -> None:
    lines = 'models={"m":{"1.0":{"batchSize":8}}}\n'
    assert lint(tmp_path, CLEAN_PROPERTIES + lines, "config.properties") == []
    without = CLEAN_PROPERTIES.replace("load_models=resnet50.mar\n", "")
    finding = only(lint(tmp_path, without + lines, "config.properties"))
    assert (finding.rule, finding.level) == ("models-json", "warning")
    assert finding.text == "configures models but loads none, and `load_models` is not set"


def test_one_port_for_management_and_inference_needs_tokens_off(tmp_path: Path) -> None:
    lines = "inference_address=http://127.0.0.1:8081\ndisable_token_authorization=false"
    content, _ = changed(CLEAN_PROPERTIES, lines, "=")
    findings = lint(tmp_path, content, "config.properties")
    assert {finding.rule for finding in findings} == {"port-clash", "token-auth"}


def test_grpc_tls_needs_both_pem_files(tmp_path: Path) -> None:
    findings = lint(tmp_path, CLEAN_PROPERTIES + "enable_grpc_ssl=true\n", "config.properties")
    assert [(finding.rule, finding.text) for finding in findings] == [
        ("tls-files", "gRPC needs `certificate_file` for it, a keystore is not read"),
        ("tls-files", "gRPC needs `private_key_file` for it, a keystore is not read"),
    ]


def test_a_plugin_may_read_a_key_torchserve_does_not_know(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, CLEAN_PROPERTIES + "plugins_path=/plugins\nzzz=1\n", "config.properties"))
    assert (finding.rule, finding.level) == ("unknown-key", "warning")


@pytest.mark.parametrize(("value", "level"), [("1", "warning"), ("2", "error")])
def test_a_key_given_twice_is_worse_when_the_values_differ(tmp_path: Path, value: str, level: str) -> None:
    finding = only(lint(tmp_path, f"{CLEAN_PROPERTIES}job_queue_size=1\njob_queue_size={value}\n", "config.properties"))
    assert (finding.rule, finding.level, finding.line) == ("duplicate-key", level, 11)
    assert finding.text == "given twice, first on line 10; the last one wins"


def test_a_key_given_twice_in_a_model_config(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, CLEAN_MODEL_CONFIG + "batchSize: 4\n", "model-config.yaml"))
    assert (finding.rule, finding.line, finding.key) == ("duplicate-key", 12, "batchSize")
    assert finding.text == "given twice, first on line 3; the last one wins"


def test_unknown_options_of_torchrun(tmp_path: Path) -> None:
    lines = "parallelType: tp\ntorchrun:\n  nproc_per_node: 2\n  zzz: 1\n"
    near, far = lint(tmp_path, CLEAN_MODEL_CONFIG + lines, "model-config.yaml")
    start = "unknown option of `torchrun`, TorchServe ignores it with one line in the log; "
    assert (near.rule, near.line, near.hint) == ("unknown-key", 14, "nproc-per-node: 2")
    assert near.text == f"{start}did you mean `nproc-per-node`?"
    assert far.text == f"{start}allowed: " + ", ".join(f"`{name}`" for name in sorted(TORCHRUN))


def test_a_spec_is_not_taken_for_torchserves_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("name: shells\nmodel: {source: torchvision:resnet18}\n")
    with pytest.raises(InputError, match=r"spec.yaml: this is a spec of Marina, allowed: a `config.properties` or"):
        lint_file(file)
