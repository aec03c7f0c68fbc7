"""Kubeconfigs of every form, and what answers at their address."""

import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_apiserver import TOKEN, FakeCluster
from kubernetes.client import Configuration

from marina.config.errors import ClusterError, InputError
from marina.k8s.cluster import Cluster, Ref, connect

PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    before = Cluster.__init__

    def init(self: Cluster, *arguments: Any, **_: Any) -> None:
        before(self, *arguments, pause=lambda _: None)

    monkeypatch.setattr(Cluster, "__init__", init)


def test_a_server_that_has_answered_before_is_tried_for_a_minute_and_another_one_five_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    cluster = Cluster(Configuration(host="https://127.0.0.1:9"), "c")
    monkeypatch.setattr(cluster, "_pause", waited.append)
    for has_answered in (False, True):
        waited.clear()
        monkeypatch.setattr(cluster, "_has_answered", has_answered)
        with pytest.raises(ClusterError, match="it refuses the connection"):
            cluster.version()
        if has_answered:
            assert sum(waited[:-1]) < 60 <= sum(waited)
        else:
            assert waited == pytest.approx([0.2, 0.4, 0.8, 1.6])


def written(folder: Path, *, user: object = None, cluster: object = None, current: str = "c") -> Path:
    """A kubeconfig with one context."""
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [{"name": "k", "cluster": cluster or {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"user": {"exec": PLUGIN}}, "No such file or directory: 'no-such-plugin'"),
        ({"user": {"exec": PLUGIN | {"command": "false"}}}, "exec: process returned 1"),
        ({"user": {"tokenFile": "/none"}}, "No such file or directory: '/none'"),
        ({"cluster": {"server": "https://a", "certificate-authority-data": "abc"}}, "Incorrect padding"),
        ({"cluster": {"server": 5}}, "'int' object has no attribute"),
    ],
    ids=str,
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="the kubeconfig cannot be used: ") as error:
        connect(None, written(tmp_path, **parts))
    assert said in error.value.message


def test_a_current_context_that_does_not_exist_is_named_and_another_one_can_be_used(tmp_path: Path) -> None:
    for current in ("gone", ""):
        file = written(tmp_path, current=current)
        with pytest.raises(InputError, match=f"the kubeconfig's `current-context`: got `{current}`, allowed: `c`"):
            connect(None, file)
        assert connect("c", file).context == "c"


def test_of_several_kubeconfigs_the_first_chooses_the_context_as_with_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path).rename(tmp_path / "first")
    text = first.read_text(encoding="utf-8")
    (tmp_path / "second").write_text(text.replace(": c\n", ": d\n").replace(": k\n", ": l\n"), encoding="utf-8")
    places = os.pathsep.join(map(str, (tmp_path / "none", first, tmp_path / "second")))
    monkeypatch.setattr("marina.k8s.cluster.kubeconfig.KUBE_CONFIG_DEFAULT_LOCATION", places)
    assert connect().context == "c"
    assert connect("d").context == "d"


@pytest.mark.parametrize("text", ["", "a: [", "- 1\n", "words", "a: \x00"])
def test_a_file_that_is_no_kubeconfig_is_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="the kubeconfig cannot be used: "):
        connect(None, tmp_path / "config")
    with pytest.raises(InputError, match="the kubeconfig cannot be used: "):
        connect(None, tmp_path)


def test_inside_a_pod_a_broken_kubeconfig_never_leads_to_the_pods_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config, kube_config

    import marina.k8s.cluster.kubeconfig as module

    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    for place, file in (("none", tmp_path / "none"), ("broken", written(tmp_path, current="gone"))):
        for library in (kube_config, module):
            monkeypatch.setattr(library, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        if place == "none":
            assert connect().context == "in-cluster"
        else:
            with pytest.raises(InputError, match="`current-context`: got `gone`"):
                connect()


def test_the_line_end_in_a_file_with_a_token_is_no_part_of_it(tmp_path: Path) -> None:
    with FakeCluster(tmp_path) as fake:
        data = yaml.safe_load(fake.kubeconfig.read_text(encoding="utf-8"))
        (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
        data["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
        fake.kubeconfig.write_text(yaml.safe_dump(data), encoding="utf-8")
        assert connect(None, fake.kubeconfig).get(Ref("v1", "Namespace", "", "default"))


@pytest.fixture
def page() -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """A server that gives one answer to everything: its address, and the answer."""
    answer = [(200, b"")]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer[0][0])
            self.send_header("Content-Length", str(len(answer[0][1])))
            self.end_headers()
            self.wfile.write(answer[0][1])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", answer
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>Log in</html>", "does not answer as an API server does: `<html>Log in</html>`"),
        (200, b"[1]", "does not answer as an API server does: `[1]`"),
        (302, b"", "the answer was 302 Found"),
        (404, b"<html>\n" + b"x" * 1000, f"the answer was 404 Not Found: `<html> {'x' * 53}`"),
    ],
    ids=["a login", "a list", "elsewhere", "a page"],
)
def test_an_address_where_no_api_server_answers_is_reported(
    tmp_path: Path, page: Any, status: int, body: bytes, said: str
) -> None:
    url, answer = page
    answer[0] = (status, body)
    for ask in (lambda cluster: cluster.version(), lambda cluster: cluster.get(Ref("v1", "Pod", "a", "b"))):
        with pytest.raises(ClusterError, match=re.escape(said)):
            ask(connect(None, written(tmp_path, cluster={"server": url})))
