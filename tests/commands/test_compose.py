import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import ROOT, digits_spec
from tools import needs

from marina.archiver.containers.build import ImageOptions, image_reference
from marina.config.render import Ports
from marina.k8s.manifests.plan import make_plan
from marina.k8s.manifests.writing import write_manifests

COMPOSE = ROOT / "docker/compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder as `marina manifests` leaves it."""
    folder = tmp_path_factory.mktemp("build") / "digits"
    write_manifests(make_plan(digits_spec(), folder), folder)
    return folder


def mounts(service: str) -> dict[str, str]:
    """The source of each mounted file, by its path in the container."""
    pairs = [entry.removesuffix(":ro").rsplit(":", 1) for entry in SERVICES[service]["volumes"]]
    return {inside: outside.replace("${BUILD:-../build/digits}", "BUILD") for outside, inside in pairs}


@pytest.mark.slow
def test_compose_accepts_the_file() -> None:
    compose = needs("docker-compose", package="docker-compose")
    done = subprocess.run([compose, "-f", COMPOSE, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_mounted_file_exists(built: Path) -> None:
    for service in ("prometheus", "grafana"):
        for outside in mounts(service).values():
            file = built / outside.removeprefix("BUILD/") if outside.startswith("BUILD") else ROOT / "docker" / outside
            assert file.is_file(), outside


def test_the_server_is_the_image_of_the_digits_example() -> None:
    ref, tag = image_reference(digits_spec(), "cpu", ImageOptions())
    assert SERVICES["server"]["image"] == f"${{IMAGE:-{ref}:{tag}}}"


def test_the_server_has_as_few_rights_as_in_a_cluster_and_time_to_drain() -> None:
    server, spec = SERVICES["server"], digits_spec()
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    # Compiled models are loaded from there.
    assert [entry.partition(":")[2].split(",")[0] for entry in server["tmpfs"]] == ["exec"]
    granted = int(server["stop_grace_period"].removesuffix("s"))
    assert granted == spec.serving.drain_propagation_s + spec.serving.drain_timeout_s + 5


def test_nothing_listens_beyond_loopback() -> None:
    ports = [entry for service in SERVICES.values() for entry in service["ports"]]
    assert [entry for entry in ports if not entry.startswith("127.0.0.1:")] == []


def test_prometheus_accepts_its_configuration_and_the_rules(built: Path, tmp_path: Path) -> None:
    promtool = needs("promtool", package="prometheus")
    for inside, outside in mounts("prometheus").items():
        file = built / outside.removeprefix("BUILD/") if outside.startswith("BUILD") else ROOT / "docker" / outside
        shutil.copy(file, tmp_path / Path(inside).name)
    checked = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert re.search(r"SUCCESS: \d+ rules found", checked.stdout)


def test_prometheus_scrapes_the_pages_and_adds_the_labels_that_rules_use(built: Path) -> None:
    configuration = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text(encoding="utf-8"))
    static = configuration["scrape_configs"][0]["static_configs"][0]
    assert static["targets"] == [f"server:{Ports().supervisor}"]
    spec = digits_spec()
    assert static["labels"]["namespace"] == spec.kubernetes.namespace
    rules = (built / "prometheus/rules.yaml").read_text(encoding="utf-8")
    # Only the server's own series; others come from the cluster.
    asked = set(
        re.findall(r'\b(\w+)=~?"', " ".join(re.findall(r"inference_request_duration_seconds\w*{([^}]*)}", rules)))
    )
    assert "namespace" in asked
    assert asked <= {*static["labels"], "model", "code", "le"}
    interval = f"{spec.kubernetes.monitoring.scrape_interval_s}s"
    assert configuration["global"]["scrape_interval"] == interval


def test_grafana_finds_its_data_and_the_dashboard(built: Path) -> None:
    sources = yaml.safe_load((ROOT / "docker/grafana/datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    assert [(source["type"], source["url"]) for source in sources] == [("prometheus", "http://prometheus:9090")]
    provider = yaml.safe_load((ROOT / "docker/grafana/dashboards.yaml").read_text(encoding="utf-8"))["providers"][0]
    where = [Path(inside) for inside, outside in mounts("grafana").items() if outside.startswith("BUILD")]
    assert [str(path.parent) for path in where] == [provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == str(where[0])
    dashboard = json.loads((built / "prometheus/dashboard.json").read_text(encoding="utf-8"))
    kinds = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "datasource"]
    assert kinds == [sources[0]["type"]]
