import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden import GOLDEN, check_golden
from specs import digits_spec, make_spec

from marina.config.lint import lint_file
from marina.config.render import Ports, render_log4j2, render_model_config, render_properties
from marina.config.spec import Spec

CUDA = {"serving.device": "cuda", "kubernetes.resources": {"gpu": 2, "cpu": 8}, "model.precision": "fp16"}


def properties(spec: Spec) -> str:
    return render_properties(spec, ports=Ports(8080), metrics_config=Path("/run/metrics.yaml"))


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "spec"),
    [pytest.param("digits", digits_spec(), id="cpu"), pytest.param("cuda", make_spec(CUDA), id="cuda")],
)
def test_the_files_are_the_accepted_ones(name: str, spec: Spec) -> None:
    check_golden(render_model_config(spec), GOLDEN / name / "model-config.yaml")
    check_golden(properties(spec), GOLDEN / name / "config.properties")
    check_golden(render_log4j2(spec), GOLDEN / name / "log4j2.xml")


LARGEST = {
    "serving.max_request_mb": 1024,
    "serving.java_heap_mb": 5860,
    "serving.queue": 2**31 - 1,
    "serving.max_batch_delay_ms": 2**31 - 1,
    "serving.startup_timeout_s": 2**31 - 61,
}


@pytest.mark.parametrize("changes", [{}, CUDA, {"serving.log": "json"}, LARGEST])
def test_the_linter_finds_nothing_in_rendered_files(changes: dict[str, Any], tmp_path: Path) -> None:
    spec = make_spec(changes)
    for name, text in (("model-config.yaml", render_model_config(spec)), ("config.properties", properties(spec))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert lint_file(tmp_path / name) == []


# Each field, two of its values, and the file in which they must make a difference.
SWITCHES: list[Any] = [
    ("serving.workers", 1, 2, "minWorkers"),
    ("serving.workers", 1, 2, "maxWorkers"),
    ("serving.max_batch", 2, 4, "batchSize"),
    ("serving.max_batch_delay_ms", 1, 7, "maxBatchDelay"),
    ("serving.response_timeout_s", 10, 20, "responseTimeout"),
    ("serving.startup_timeout_s", 100, 200, "startupTimeout"),
    ("serving.queue", 10, 20, "jobQueueSize"),
]


@pytest.mark.parametrize(("startup_s", "window_s"), [(300, 600), (900, 1800), (1, 61)])
def test_a_worker_that_keeps_failing_is_restarted_for_as_long_as_a_start_may_take(
    startup_s: int, window_s: int
) -> None:
    settings = yaml.safe_load(render_model_config(make_spec({"serving.startup_timeout_s": startup_s})))
    assert settings["maxRetryTimeoutInSec"] == window_s


@pytest.mark.parametrize(("field", "first", "second", "key"), SWITCHES)
def test_a_field_lands_in_model_config(field: str, first: object, second: object, key: str) -> None:
    values = [yaml.safe_load(render_model_config(make_spec({field: value})))[key] for value in (first, second)]
    assert values == [first, second]


def test_limits_land_in_config_properties() -> None:
    keys = settings(properties(make_spec({"serving.max_request_mb": 3, "serving.java_heap_mb": 300})))
    # The handler refuses bodies over 3 MB, so TorchServe has to pass these on.
    assert int(keys["max_request_size"]) > 3_000_000
    # The handler refuses larger answers itself; TorchServe, which kills the worker, must allow a little more.
    assert int(keys["max_response_size"]) > 50 * 2**20


def test_torchserve_itself_listens_only_on_loopback_and_on_sockets_of_its_folder() -> None:
    addresses = {key: value for key, value in settings(properties(make_spec())).items() if key.endswith("_address")}
    assert addresses.pop("inference_address") == "http://127.0.0.1:8080"
    assert all(value.startswith("unix:/") for value in addresses.values())


def test_all_ports_differ_and_follow_from_the_base() -> None:
    ports = Ports(9000).all()
    assert len(set(ports.values())) == len(ports) == 2
    assert ports["inference"] == 9000
    assert ports["supervisor"] == 9010


def test_a_backslash_survives_java_properties() -> None:
    text = render_properties(make_spec(), ports=Ports(), metrics_config=Path("C:\\m.yaml"))
    assert settings(text)["metrics_config"] == "C:\\\\m.yaml"


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_log_configuration_is_xml_and_writes_the_access_log_alone_to_stdout(form: str) -> None:
    root = ElementTree.fromstring(render_log4j2(make_spec({"serving.log": form})))
    stdout = [item.get("name") for item in root.iter("Console") if item.get("target") == "SYSTEM_OUT"]
    assert len(stdout) == 1
    users = [
        logger.get("name")
        for logger in root.iter()
        for ref in logger.findall("AppenderRef")
        if ref.get("ref") == stdout[0]
    ]
    assert users == ["marina.access"]


def test_json_logs_have_a_pattern_of_their_own() -> None:
    first, other = (render_log4j2(make_spec({"serving.log": form})) for form in ("json", "text"))
    assert "%enc{%m}{JSON}" in first
    assert "%enc{%m}{JSON}" not in other


def test_what_the_handler_of_an_archive_is_given_lands_in_config_properties() -> None:
    archive = {"model": {"source": "./old.mar", "handler": "archive"}, "load.sample": "x.json"}

    def keys(**model: object) -> list[str]:
        named = settings(properties(make_spec(archive | {f"model.{name}": value for name, value in model.items()})))
        return [named[key] for key in ("decode_input_request", "blacklist_env_vars", "model_metrics_auto_detect")]

    assert keys() == ["true", "", "true"]
    assert keys(decode_requests=False, hidden_env="AWS_.*|.*_KEY") == ["false", "AWS_.*|.*_KEY", "true"]
    own = settings(properties(make_spec()))
    assert (own["decode_input_request"], own["model_metrics_auto_detect"]) == ("false", "false")
    assert "_TOKEN" in own["blacklist_env_vars"]


def test_a_body_for_an_archive_is_limited_where_the_spec_says() -> None:
    archive = {"model": {"source": "./old.mar", "handler": "archive"}, "load.sample": "x.json"}
    keys = settings(properties(make_spec({**archive, "serving.max_request_mb": 6.5535})))
    assert keys["max_request_size"] == "6553500"
