from pathlib import Path

import pytest
from linting import CLEAN_MODEL_CONFIG, CLEAN_PROPERTIES, IGNORED, changed, lint, only

from marina.config.errors import InputError
from marina.config.lint.java_properties import read_as_launcher, read_properties
from marina.config.lint.linter import lint_file
from marina.config.lint.torchserve_keys import MODEL_CONFIG


@pytest.mark.parametrize(
    ("key", "real"),
    [
        ("max_batch_delay_ms", "maxBatchDelay"),
        ("batch_size", "batchSize"),
        ("max_batch_delay", "maxBatchDelay"),
        ("default_batch_size", "batchSize"),
        ("default_max_batch_delay", "maxBatchDelay"),
        ("enable_dynamic_batching", "batchSize"),
        ("enable_metrics", "enable_metrics_api"),
        ("metrics_port", "metrics_address"),
        ("metrics_format", "metrics_mode"),
        ("NUM_WORKERS", "minWorkers"),
        ("num_workers", "minWorkers"),
        ("min_workers", "minWorkers"),
        ("max_workers", "maxWorkers"),
        ("worker_timeout", "responseTimeout"),
        ("queue_size", "job_queue_size"),
        ("priority", ""),
        ("priority_queue", ""),
        ("enable_prometheus", "metrics_mode"),
        ("log_level", ""),
        ("batch_timeout", "maxBatchDelay"),
        ("inference_port", "inference_address"),
        ("management_port", "management_address"),
        ("max_request_per_worker", ""),
        ("device", "deviceType"),
        ("load_model", "load_models"),
    ],
)
def test_an_invented_key_says_where_the_setting_really_is(tmp_path: Path, key: str, real: str) -> None:
    finding = only(lint(tmp_path, f"{CLEAN_PROPERTIES}{key}=8\n", "config.properties"))
    where = " in model-config.yaml" if real in MODEL_CONFIG else ""
    ending = f"; did you mean `{real}`{where}?" if real else " and has nothing like it"
    assert (finding.rule, finding.level, finding.line, finding.text) == ("unknown-key", "error", 10, IGNORED + ending)
    assert finding.hint == "delete the line" if not real else finding.hint is not None and real in finding.hint


@pytest.mark.parametrize(
    ("key", "real"),
    [
        ("runtimeType", "`--runtime` of torch-model-archiver"),
        ("jobTicket", "`useJobTicket`"),
        ("clientTimeoutInMs", "`clientTimeoutInMills`"),
        ("maxRetryTimeout", "`maxRetryTimeoutInSec`"),
        ("numWorkers", "`minWorkers`"),
        ("gpuIds", "`deviceIds`"),
    ],
)
def test_an_invented_key_of_a_model_config(tmp_path: Path, key: str, real: str) -> None:
    finding = only(lint(tmp_path, f"{CLEAN_MODEL_CONFIG}{key}: 1\n", "model-config.yaml"))
    assert (finding.rule, finding.level, finding.text) == ("unknown-key", "error", f"{IGNORED}; did you mean {real}?")


def test_no_line_of_a_file_made_of_invented_keys_works(tmp_path: Path) -> None:
    invented = "default_batch_size=32\nmax_batch_delay_ms=50\nenable_dynamic_batching=true\nenable_metrics=true\n"
    invented += "metrics_port=8080\ndevice=cuda\n# Load compiled model\nload_model=compiled_llm\n"
    findings = lint(tmp_path, CLEAN_PROPERTIES + invented, "config.properties")
    assert [(finding.rule, finding.line) for finding in findings] == [
        ("unknown-key", number) for number in (10, 11, 12, 13, 14, 15, 17)
    ]


def test_no_metrics_mode_is_needed_if_metrics_are_off(tmp_path: Path) -> None:
    content = CLEAN_PROPERTIES.replace("metrics_mode=prometheus", "enable_metrics_api=false")
    assert lint(tmp_path, content, "config.properties") == []


def test_a_job_ticket_needs_no_batch_size(tmp_path: Path) -> None:
    content = CLEAN_MODEL_CONFIG.replace("batchSize: 8", "useJobTicket: true")
    assert lint(tmp_path, content, "model-config.yaml") == []


def test_a_finding_reads_as_place_key_and_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.properties").write_text(f"{CLEAN_PROPERTIES}batch_size=8\n", encoding="utf-8")
    assert [str(finding) for finding in lint_file(Path("config.properties"))] == [
        f"config.properties:10: `batch_size`: {IGNORED}; did you mean `batchSize` in model-config.yaml?"
    ]


def test_findings_are_sorted_by_line(tmp_path: Path) -> None:
    lines = [finding.line for finding in lint(tmp_path, "zzz=1\nasync_logging=true\nyyy=2\n", "config.properties")]
    assert lines == sorted(lines)
    assert len(set(lines)) == 3


@pytest.mark.parametrize(
    ("content", "rule", "line", "text"),
    [
        (
            b"",
            "empty-file",
            1,
            "the file is empty, TorchServe stops at its start with a NullPointerException",
        ),
        (
            b"# only\n",
            "empty-file",
            1,
            "the file is empty, TorchServe stops at its start with a NullPointerException",
        ),
        (
            b"\n- a\n",
            "not-a-mapping",
            2,
            "not a mapping of keys to values, TorchServe stops at its start with a ClassCastException",
        ),
        (
            b"a: 1\n\tb: 2\n",
            "yaml-syntax",
            2,
            "not readable as YAML: found character '\\t' that cannot start any token; "
            "TorchServe takes defaults for everything",
        ),
        (
            b"a: 1\n---\nb: 2\n",
            "yaml-syntax",
            2,
            "not readable as YAML: expected a single document in the stream, but found another document; "
            "TorchServe takes defaults for everything",
        ),
        (
            b"a: 1\nb: " + b"[" * 5000,
            "yaml-syntax",
            2,
            "not readable as YAML: nested too deep; TorchServe takes defaults for everything",
        ),
        (
            b"a: 1\nb: \xff\n",
            "encoding",
            2,
            "not UTF-8, so the Python worker dies at its start, again and again",
        ),
    ],
)
def test_a_model_config_that_is_not_a_mapping(tmp_path: Path, content: bytes, rule: str, line: int, text: str) -> None:
    finding = only(lint(tmp_path, content, "model-config.yaml"))
    assert (finding.rule, finding.level, finding.line, finding.text) == (rule, "error", line, text)


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        (
            b"\xef\xbb\xbf" + CLEAN_PROPERTIES.encode().split(b"\n", 1)[1],
            1,
            "starts with a byte order mark, which Java reads as part of the first key",
        ),
        (CLEAN_PROPERTIES.encode() + b"# caf\xe9\n", 10, "not UTF-8, the torchserve launcher stops with an error"),
    ],
)
def test_config_properties_in_another_encoding(tmp_path: Path, content: bytes, line: int, text: str) -> None:
    finding = only(lint(tmp_path, content, "config.properties"))
    assert (finding.rule, finding.level, finding.line, finding.text) == ("encoding", "error", line, text)


def test_a_line_in_latin_1_is_one_finding(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, CLEAN_PROPERTIES.encode() + b"metrics_config=/caf\xe9.yaml\n", "config.properties"))
    assert (finding.rule, finding.line) == ("encoding", 10)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("job_queue_size=" + "9" * 5000, id="a number"),
        pytest.param("inference_address=http://0.0.0.0:" + "9" * 5000, id="a port"),
        pytest.param("models=" + "[" * 100_000, id="brackets"),
        pytest.param('models={"a":{"1":{"minWorkers":"' + "9" * 5000 + '"}}}', id="a number in quotes"),
        pytest.param("blacklist_env_vars=" + "(" * 20_000, id="parentheses"),
    ],
)
def test_very_long_values_are_findings(tmp_path: Path, lines: str) -> None:
    text, line = changed(CLEAN_PROPERTIES, lines, "=")
    assert [finding.line for finding in lint(tmp_path, text, "config.properties")] == [line]


def test_an_expression_that_would_take_years_is_checked_at_once(tmp_path: Path) -> None:
    text, _ = changed(CLEAN_PROPERTIES, "allowed_urls=(.*)*(.*)*(.*)*(.*)*x,((h|t|p|.)*)*y", "=")
    assert lint(tmp_path, text, "config.properties") == []


@pytest.mark.parametrize(
    "line", ["job_queue_size=$$QUEUE$$", "inference_address=http://0.0.0.0:$$PORT$$", "metrics_address=$$METRICS$$"]
)
def test_values_that_torchserve_takes_from_the_environment_are_not_judged(tmp_path: Path, line: str) -> None:
    text, _ = changed(CLEAN_PROPERTIES, line, "=")
    assert lint(tmp_path, text, "config.properties") == []


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, CLEAN_PROPERTIES + "\x1b[31mred=\x1b[2J\n", "config.properties"))
    assert "\x1b" not in f"{finding} {finding.hint}"
    finding = only(lint(tmp_path, CLEAN_MODEL_CONFIG + '"\\ud800": 1\n', "model-config.yaml"))
    assert f"{finding} {finding.hint}".isprintable()


def test_a_list_as_a_key_is_one_finding_without_python_in_it(tmp_path: Path) -> None:
    finding = only(lint(tmp_path, CLEAN_MODEL_CONFIG + "? [a]\n: 1\n", "model-config.yaml"))
    assert (finding.rule, finding.key, finding.hint) == ("key-type", "", None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 10}]}}\n"
                                                  for n in range(1, 9)), id="merges of merges"),
        pytest.param("handler: " + "{a: " * 80 + "}" * 80 + "\n", id="nesting"),
    ],
)  # fmt: skip
def test_a_model_config_that_grows_without_limit_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="more than"):
        lint(tmp_path, CLEAN_MODEL_CONFIG + text, "model-config.yaml")


def test_an_endless_file_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "config.properties").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="more than 1,000,000 bytes"):
        lint_file(tmp_path / "config.properties")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    with pytest.raises(InputError) as caught:
        lint_file(tmp_path / "config.toml")
    assert caught.value.message == (
        f"{tmp_path}/config.toml: its name must end in one of `.properties`, `.yaml`, `.yml`"
    )
    assert caught.value.hint == "marina check --properties config.properties"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("config.properties", "config"):
        with pytest.raises(InputError, match=f"{name}: no such file"):
            lint_file(tmp_path / name)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match=r"folder\.yaml: not readable: Is a directory"):
        lint_file(tmp_path / "folder.yaml")


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
def test_properties_are_read_as_java_reads_them(text: str, pairs: list[tuple[int, str, str]]) -> None:
    assert [(entry.line, entry.key, entry.value) for entry in read_properties(text)] == pairs


def test_the_launcher_reads_less_than_java() -> None:
    text = "a: 1\nb=2 \\\n  3\n#c=4\n d = 5=6 \n"
    assert read_as_launcher(text) == {"b": "2 \\", "d": "5=6"}
