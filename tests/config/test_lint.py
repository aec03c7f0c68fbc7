import re
from pathlib import Path

import pytest

from marina.config.errors import InputError
from marina.config.lint import Finding, lint_file, load_model_config, load_properties
from marina.config.lint.readers import read_as_launcher, read_properties

PROPERTIES = """\
# what a careful user writes
inference_address=http://0.0.0.0:8080
management_address=http://127.0.0.1:8081
metrics_address=http://localhost:8082
model_store=/models
load_models=resnet50.mar
metrics_mode=prometheus
disable_token_authorization=true
allowed_urls=file:///models/.*
"""
MODEL_CONFIG = """\
minWorkers: 2
maxWorkers: 2
batchSize: 8
maxBatchDelay: 5
responseTimeout: 30
startupTimeout: 120
maxRetryTimeoutInSec: 300
deviceType: cpu
jobQueueSize: 200
handler:
  anything: 1
"""
IGNORED = "unknown key, TorchServe silently ignores it"
DEFAULT_WORKERS = "TorchServe starts the default number: one for each GPU, or for each processor if there is none"
TOKENS = "every call needs a token, even `/ping`, so probes get 400, and each replica has tokens of its own"
RESET = "not set, so it is 120 seconds, whatever config.properties and the register call say"
ADDRESSES = "`http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH`"
IN_MODEL_FILE = "in model-config.yaml"


def lint(folder: Path, text: str | bytes, name: str = "config.properties") -> list[Finding]:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return lint_file(file)


def changed(clean: str, lines: str) -> tuple[str, int]:
    """The clean text with `lines` at its end instead of their keys, and the number of the first of these lines."""
    names = {re.split(r"[=: ]", line.strip())[0] for line in lines.splitlines()}
    kept = [line for line in clean.splitlines() if re.split("[=:]", line)[0] not in names]
    return "\n".join([*kept, lines]) + "\n", len(kept) + 1


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, "\n".join(f"{finding.rule}: {finding}" for finding in findings)
    return findings[0]


@pytest.mark.parametrize(
    ("lines", "rule", "level", "text", "hint"),
    [
        ("job_queue_szie=5", "unknown-key", "error", f"{IGNORED}; did you mean `job_queue_size`?", "job_queue_size=5"),
        ("Job-Queue-Size=5", "unknown-key", "error", f"{IGNORED}; did you mean `job_queue_size`?", "job_queue_size=5"),
        ("zzz=5", "unknown-key", "error", IGNORED, "delete the line"),
        ("batch_size=5", "unknown-key", "error", f"{IGNORED}; did you mean `batchSize` {IN_MODEL_FILE}?",
         f"write `batchSize: 5` {IN_MODEL_FILE} and delete this line"),
        ("enable_grpc_ssl=yes", "wrong-type", "error",
         "got `yes`, allowed: `false`, `true`; TorchServe reads everything but `true` as `false`",
         "enable_grpc_ssl=true"),
        ("prefer_direct_buffer=0", "wrong-type", "warning",
         "got `0`, allowed: `false`, `true`; TorchServe reads everything but `true` as `false`",
         "prefer_direct_buffer=false"),
        ("prefer_direct_buffer=True ", "wrong-type", "error",
         "got `True `, allowed: the word alone: with a space at the end it reads as `false`",
         "prefer_direct_buffer=True"),
        *((f"{key}={value}", "wrong-type", "error",
           f"got `{value}`, allowed: a whole number from {allowed}, without spaces around it", f"{key}={default}")
          for key, value, allowed, default in [
            ("max_request_size", "10MB", "1 to 2147483647 (bytes)", "6553500"),
            ("max_request_size", "2147483648", "1 to 2147483647 (bytes)", "6553500"),
            ("job_queue_size", "5 ", "1 to 2147483647 (requests)", "100"),
            ("job_queue_size", "0", "1 to 2147483647 (requests)", "100"),
            ("io_ratio", "101", "1 to 100 (percent)", "50"),
        ]),
        ("token_expiration_min=1h", "wrong-type", "error",
         "got `1h`, allowed: a number (minutes); TorchServe takes 60.0", "token_expiration_min=60.0"),
        ("service_envelope=v2", "wrong-type", "error",
         "got `v2`, allowed: `base`, `body`, `json`, `kserve`, `kservev2`", "service_envelope=base"),
        ("metrics_mode=prom", "wrong-type", "error", "got `prom`, allowed: `legacy`, `log`, `prometheus`",
         "metrics_mode=prometheus"),
        *((f"management_address={value}", "wrong-type", "error",
           f"got `{value}`, allowed: {ADDRESSES}; TorchServe stops at its start",
           "management_address=http://127.0.0.1:8081")
          for value in ("http://127.0.0.1:8081/", "http://[::1]:8081", "127.0.0.1")),
        *((f"models={value}", "wrong-type", "error",
           f"got `{value}`, allowed: JSON on one line, or with a backslash at the end of each line but the last",
           'models={"resnet50":{"1.0":{"minWorkers":2,"maxWorkers":2,"batchSize":8}}}')
          for value in ('{"m":', "[]")),
        ("metrics_mode=log", "metrics-mode", "warning",
         "`/metrics` answers with an empty page, the numbers go to logs", "metrics_mode=prometheus"),
        *((f"allowed_urls={value}", "allowed-urls", "warning", "lets models be loaded from anywhere",
           "allowed_urls=file:///home/model-server/model-store/.*")
          for value in ("https?://.*", "file://.*|http(s)?://.*", ".*", "file:///models/.*,.*")),
        ("disable_token_authorization=false", "token-auth", "warning", TOKENS,
         "disable_token_authorization=true, and let the gateway and a NetworkPolicy guard the ports"),
        ("default_response_timeout=300", "yaml-resets", "warning",
         "any model-config.yaml resets it to 120 seconds, unless it sets `responseTimeout` itself",
         "responseTimeout: 300 in each model-config.yaml"),
        ("install_py_dep_per_model=true", "install-deps", "warning",
         "runs pip for each model at registration: it needs the internet, may replace torch and runs setup code",
         "install_py_dep_per_model=false, and install the packages in the image"),
        ("enable_model_api=true", "model-api", "warning",
         "anyone who can reach the management port may load a model, which is code", "enable_model_api=false"),
        ("management_address=http://0.0.0.0:8081", "open-address", "warning",
         "`0.0.0.0` is not loopback: anyone who can reach it may scale models and register workflows",
         "management_address=http://127.0.0.1:8081"),
        ("metrics_address=http://metrics.internal:8082", "open-address", "warning",
         "`metrics.internal` is not loopback: it is open to the network", "metrics_address=http://127.0.0.1:8082"),
        ("metrics_config=${HOME}/metrics.yaml", "dollar-substitution", "error",
         "`${HOME}` is not replaced, TorchServe replaces only `$$NAME$$` with a name of two or more characters",
         "write `$$HOME$$`, or the value"),
        ("vmargs=-Xmx1g \\\n  -Xms1g", "launcher-line", "error",
         "the torchserve launcher reads `-Xmx1g \\`: it knows `=` only, no continuation lines and no escapes",
         "write it on one line: vmargs=-Xmx1g -Xms1g"),
        ("model_store: /models", "launcher-line", "error",
         "the torchserve launcher reads nothing: it knows `=` only, no continuation lines and no escapes",
         "write it on one line: model_store=/models"),
        ("allowed_urls=https://models\\.corp/.*", "lost-backslash", "error", "Java drops the backslash before `.`",
         "write each backslash twice"),
        ("metrics_config=C:\\users\\metrics.yaml", "escape", "error",
         "`\\u` without four hexadecimal digits, TorchServe stops at its start", "write `\\\\` for a backslash"),
    ],
)  # fmt: skip
def test_lines_of_config_properties_break_one_rule(
    lines: str, rule: str, level: str, text: str, hint: str, tmp_path: Path
) -> None:
    content, number = changed(PROPERTIES, lines)
    finding = only(lint(tmp_path, content))
    assert (finding.rule, finding.level, finding.line, finding.text, finding.hint) == (rule, level, number, text, hint)


@pytest.mark.parametrize(
    ("lines", "rule", "level", "text", "hint"),
    [
        ("batch_size: 8", "unknown-key", "error", f"{IGNORED}; did you mean `batchSize`?", "batchSize: 8"),
        ("maxBatchDelays: 8", "unknown-key", "error", f"{IGNORED}; did you mean `maxBatchDelay`?", "maxBatchDelay: 8"),
        ("metricsMode: log", "unknown-key", "error", f"{IGNORED}; did you mean `metrics_mode` in config.properties?",
         'metrics_mode="log" in config.properties'),
        ("labels: [a]", "unknown-key", "warning", "TorchServe does not know it and passes it to the handler",
         "delete it, unless the handler reads model_yaml_config['labels']"),
        *((f"{key}: {value}", "wrong-type", "error", f"got `{shown}`, allowed: {allowed}; TorchServe ignores it",
           f"{key}: {default}")
          for key, value, shown, allowed, default in [
            ("jobQueueSize", '"8"', '"8"', "a whole number", "100"),
            ("jobQueueSize", "8.0", "8.0", "a whole number", "100"),
            ("jobQueueSize", "true", "true", "a whole number", "100"),
            ("jobQueueSize", "", "null", "a whole number", "100"),
            ("jobQueueSize", "[8]", "[8]", "a whole number", "100"),
            ("deviceType", "null", "null", "a text", "cpu"),
            ("deviceType", "tpu", '"tpu"', "`cpu`, `gpu`", "cpu"),
            ("deviceType", "cuda:0", '"cuda:0"', "`cpu`, `gpu`", "gpu"),
            ("deviceIds", "0", "0", "a list of whole numbers from 0", "[0]"),
            ("deviceIds", "[0, true]", "[0, true]", "a list of whole numbers from 0", "[0]"),
            ("deviceIds", "[-1]", "[-1]", "a list of whole numbers from 0", "[0]"),
            ("torchrun", "2", "2", "a mapping", "{nproc-per-node: 2}"),
        ]),
        ("maxNumSequence: 0", "wrong-type", "error", "got `0`, allowed: 1 or more (sequences), below 2147483648",
         "maxNumSequence: 1"),
        ("jobQueueSize: 3000000000", "wrong-type", "error",
         "got `3000000000`, allowed: 1 or more (requests), below 2147483648", "jobQueueSize: 100"),
        ("jobQueueSize: 010", "not-readable", "error",
         "got `010`, which YAML reads as octal, allowed: a number without leading zeros",
         "10, or in quotes if it is text"),
        ("jobQueueSize: !!python/name:os.system", "not-readable", "error",
         "not readable as YAML: `` is not a valid `!!python/name:os.system`", None),
        ("maxWorkers: 1", "workers", "error",
         f"got `1`, which is under `minWorkers` 2, so both are ignored: {DEFAULT_WORKERS}", "maxWorkers: 2"),
        ("maxWorkers: 4", "workers-differ", "warning",
         "got `4`, but TorchServe never scales from `minWorkers` 2 up to it: 2 will run",
         "minWorkers: 4, or maxWorkers: 2"),
        ("maxBatchDelay: 0", "batch-delay", "error", "0 does not mean no delay, it means the default of 100 ms",
         "maxBatchDelay: 1"),
        ("maxRetryTimeoutInSec: 150", "retry-window", "warning",
         "150 seconds, less than `startupTimeout` 120 + 60: a worker may be given up while it loads",
         "maxRetryTimeoutInSec: 180"),
        ("clientTimeoutInMills: 500", "client-timeout", "error",
         "a request that waits longer is dropped without an answer, and its client hangs",
         "delete the line, set responseTimeout"),
        *((f"{key}: true", "one-by-one", "error", "does not work with `batchSize` 8", "batchSize: 1")
          for key in ("useJobTicket", "asyncCommunication")),
    ],
)  # fmt: skip
def test_lines_of_a_model_config_break_one_rule(
    lines: str, rule: str, level: str, text: str, hint: str | None, tmp_path: Path
) -> None:
    content, number = changed(MODEL_CONFIG, lines)
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level, finding.line, finding.text, finding.hint) == (rule, level, number, text, hint)


@pytest.mark.parametrize(
    ("missing", "key", "level", "text"),
    [
        ("metrics_mode", "", "warning", "not set, so it is `log`: `/metrics` answers with an empty page"),
        ("allowed_urls", "", "warning", "not set, so models may be loaded from any URL"),
        ("disable_token_authorization", "", "warning", f"not set, so {TOKENS}"),
        ("model_store", "", "warning", "not set, so TorchServe stops at its start unless the command line names it"),
        ("minWorkers", "maxWorkers", "error",
         f"`minWorkers` is not set, and without it `maxWorkers` is ignored: {DEFAULT_WORKERS}"),
        ("minWorkers maxWorkers", "minWorkers", "warning", f"neither it nor `maxWorkers` is set: {DEFAULT_WORKERS}"),
        ("batchSize", "", "warning", "not set, so it is 1: nothing is batched"),
        ("responseTimeout", "", "warning", RESET),
        ("startupTimeout", "", "warning", RESET),
    ],
)  # fmt: skip
def test_a_key_that_is_missing(missing: str, key: str, level: str, text: str, tmp_path: Path) -> None:
    clean, name = (PROPERTIES, "config.properties") if "_" in missing else (MODEL_CONFIG, "model-config.yaml")
    content = "".join(line for line in clean.splitlines(True) if re.split("[=:]", line)[0] not in missing.split())
    finding = only(lint(tmp_path, content, name))
    assert (finding.key, finding.level, finding.line, finding.text) == (key or missing, level, 1, text)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "keystore_pass=$$KEYSTORE_PASS$$",
        "job_queue_size=$$QUEUE$$",
        "inference_address=http://0.0.0.0:$$PORT$$",
        "metrics_mode= Prometheus ",
        "token_expiration_min= 5.5 ",
        "job_queue_size=+5",
        "enable_metrics_api=FALSE\nmetrics_mode=log",
        "management_address=unix:/tmp/management.sock",
        'models={"m":{"1.0":{"batchSize":"8","defaultVersion":true,"marName":"m.mar"}}}',
        "! a comment\n# another",
        "blacklist_env_vars=(AWS_.*|.*$SECRET)",
        "metrics_config=/caf\\u00e9/metrics.yaml",
    ],
)
def test_settings_that_torchserve_reads_well_have_no_findings(lines: str, tmp_path: Path) -> None:
    assert lint(tmp_path, changed(PROPERTIES, lines)[0]) == []


@pytest.mark.parametrize(
    "lines",
    ["", "deviceType: GPU\ndeviceIds: [0, 1]", "batchSize: 1\nuseJobTicket: on", "jobQueueSize: 0x10", "pt2: {a: {}}"],
)
def test_settings_of_a_model_config_that_are_allowed_have_no_findings(lines: str, tmp_path: Path) -> None:
    assert lint(tmp_path, changed(MODEL_CONFIG, lines)[0], "model-config.yml") == []


def test_no_line_of_a_file_made_of_invented_keys_works(tmp_path: Path) -> None:
    invented = "default_batch_size=32\nmax_batch_delay_ms=50\nenable_dynamic_batching=true\nenable_metrics=true\n"
    invented += "metrics_port=8080\ndevice=cuda\n# Load compiled model\nload_model=compiled_llm\n"
    findings = lint(tmp_path, PROPERTIES + invented)
    assert [(finding.rule, finding.line) for finding in findings] == [
        ("unknown-key", number) for number in (10, 11, 12, 13, 14, 15, 17)
    ]


def test_a_finding_reads_as_place_key_and_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.properties").write_text(f"{PROPERTIES}batch_size=8\n", encoding="utf-8")
    assert [str(finding) for finding in lint_file(Path("config.properties"))] == [
        f"config.properties:10: `batch_size`: {IGNORED}; did you mean `batchSize` {IN_MODEL_FILE}?"
    ]


@pytest.mark.parametrize(("value", "level"), [("1", "warning"), ("2", "error")])
def test_a_key_given_twice_is_worse_when_the_values_differ(value: str, level: str, tmp_path: Path) -> None:
    finding = only(lint(tmp_path, f"{PROPERTIES}job_queue_size=1\njob_queue_size={value}\n"))
    assert (finding.rule, finding.level, finding.line) == ("duplicate-key", level, 11)
    assert finding.text == "given twice, first on line 10; the last one wins"


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        (b"", 1, "the file is empty"),
        (b"\n- a\n", 1, "a mapping of fields is needed at the top"),
        (b"a: 1\n\tb: 2\n", 2, "not readable as YAML: found character '\\t' that cannot start any token"),
        (b"a: 1\n---\nb: 2\n", 2, "not readable as YAML: expected a single document in the stream, but found another"),
        (b"a: 1\nb: " + b"[" * 5000, 2, "not readable as YAML: nested too deep"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        (b"handler: " + b"{a: " * 80 + b"}" * 80, 1, "nested more than 60 deep"),
        (MODEL_CONFIG.encode() + b"batchSize: 4\n", 12, "given twice, first on line 3"),
    ],
)
def test_a_model_config_that_cannot_be_read_is_one_finding(
    content: bytes, line: int, text: str, tmp_path: Path
) -> None:
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level, finding.line) == ("not-readable", "error", line)
    assert finding.text.startswith(text)
    with pytest.raises(InputError) as caught:
        load_model_config(tmp_path / "model-config.yaml")
    assert text in str(caught.value)


@pytest.mark.parametrize("lines", ["job_queue_size=" + "9" * 5000, "models=" + "[" * 100_000])
def test_very_long_values_are_findings(lines: str, tmp_path: Path) -> None:
    text, line = changed(PROPERTIES, lines)
    assert [finding.line for finding in lint(tmp_path, text)] == [line]


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, PROPERTIES + "\x1b[31mred=\x1b[2J\n"))
    assert "\x1b" not in f"{finding} {finding.hint}"
    finding = only(lint(tmp_path, MODEL_CONFIG + '"\\ud800": 1\n', "model-config.yaml"))
    assert f"{finding} {finding.hint}".isprintable()


def test_a_file_of_another_kind_or_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("name: shells\nmodel: {source: torchvision:resnet18}\n")
    (tmp_path / "config.toml").touch()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "endless.properties").symlink_to("/dev/zero")
    for name, message in {
        "spec.yaml": "this is a spec of Marina, allowed: a `config.properties` or `model-config.yaml` of TorchServe",
        "config.toml": "its name must end in one of `.properties`, `.yaml`, `.yml`",
        "gone.yaml": "no such file",
        "folder.yaml": "not readable: Is a directory",
        "endless.properties": "more than 1,000,000 bytes; such a file has a few thousand",
    }.items():
        with pytest.raises(InputError) as caught:
            lint_file(tmp_path / name)
        assert caught.value.message == f"{tmp_path / name}: {message}"


# Each expected pair was printed by java.util.Properties (Java 17) for the same bytes.
@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb:2\nc 3\nd\t=\t4", [(1, "a", "1"), (2, "b", "2"), (3, "c", "3"), (4, "d", "4")]),
        ("  a = b = c ", [(1, "a", "b = c ")]),
        ("a=1\\\n   2\\\n3\nb=4", [(1, "a", "123"), (4, "b", "4")]),
        ("a=1\\\\\nb=2", [(1, "a", "1\\"), (2, "b", "2")]),
        ("a=1\\\n#no comment", [(1, "a", "1#no comment")]),
        ("# comment \\\na=1", [(2, "a", "1")]),
        ("a\\=b=c\\:d", [(1, "a=b", "c:d")]),
        ("a=\\u00e9\\t\\q", [(1, "a", "é\tq")]),
        ("a\\ b=1", [(1, "a b", "1")]),
        ("a=1\r\nb=2\rc=3", [(1, "a", "1"), (2, "b", "2"), (3, "c", "3")]),
        ("\n\n! x\na", [(4, "a", "")]),
        ("a=1\\", [(1, "a", "1")]),
        ("\\\n# comment\na=1", [(3, "a", "1")]),
        ("a\\\\=1", [(1, "a\\", "1")]),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: list[tuple[int, str, str]], tmp_path: Path) -> None:
    assert [(entry.line, entry.key, entry.value) for entry in read_properties(text.encode())] == pairs
    (tmp_path / "config.properties").write_text(text, encoding="utf-8", newline="")
    assert load_properties(tmp_path / "config.properties") == {key: value for _, key, value in pairs}


def test_the_launcher_reads_less_than_java() -> None:
    text = b"a: 1\nb=2 \\\n  3\n#c=4\n d = 5=6 \n"
    assert read_as_launcher(text) == {"b": "2 \\", "d": "5=6"}


def test_a_model_config_is_read_with_what_only_its_handler_knows(tmp_path: Path) -> None:
    (tmp_path / "model-config.yaml").write_text(MODEL_CONFIG + "labels: [a, 2020-01-01]\nuseVenv: on\n")
    values = load_model_config(tmp_path / "model-config.yaml")
    assert values["handler"] == {"anything": 1}
    assert values["labels"] == ["a", "2020-01-01"]
    assert values["useVenv"] is True
