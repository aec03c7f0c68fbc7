"""Kubeconfigs of every form, and what answers at their address."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from fake_apiserver import TOKEN, FakeCluster, Fault
from fake_apiserver_controllers import RUNNING, Step
from k8s_rig import documents, rig
from kubernetes.client import Configuration

from marina.config.errors import ClusterError, InputError
from marina.k8s.cluster import Mirror, Ref, connect, watch
from marina.k8s.cluster.transport import Transport

PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    before = Transport.__init__

    def init(self: Transport, *arguments: Any, **_: Any) -> None:
        before(self, *arguments, pause=lambda _: None)

    monkeypatch.setattr(Transport, "__init__", init)


def test_a_server_that_has_answered_before_is_tried_for_a_minute_and_another_one_five_times() -> None:
    def broken() -> None:
        raise urllib3.exceptions.ProtocolError("connection reset")

    waited: list[float] = []
    transport = Transport(Configuration(host="https://127.0.0.1:9"), "c")
    transport._pause = waited.append
    with pytest.raises(ClusterError, match="connection reset"):
        transport.with_retries(broken)
    assert waited == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert transport.with_retries(lambda: "an answer") == "an answer"
    waited.clear()
    with pytest.raises(ClusterError, match="connection reset"):
        transport.with_retries(broken)
    assert sum(waited[:-1]) < 60 <= sum(waited)


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


@pytest.mark.slow
def test_a_watch_into_which_a_proxy_writes_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, strange, changed = watch._lines, [{"kind": "Status"}], threading.Event()

    def disturbed(response: Any) -> Iterator[Mapping[str, Any]]:
        yield from lines(response) if not strange else [strange.pop()]

    monkeypatch.setattr(watch, "_lines", disturbed)
    with FakeCluster(tmp_path) as fake:
        cluster = connect(None, fake.kubeconfig)
        with Mirror(cluster, "v1", "ConfigMap", "default", changed) as mirror:
            fake.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}})
            while not mirror.objects:
                changed.clear()
                assert mirror.objects or changed.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("passed_on", [lambda _: [], lambda lines: list(lines)[:0]], ids=["ended at once", "kept back"])
def test_what_a_proxy_passes_on_of_no_watch_is_seen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed_on: Callable[[Iterator[Any]], list[Any]]
) -> None:
    lines, changed = watch._lines, threading.Event()
    monkeypatch.setattr(watch, "_lines", lambda response: passed_on(lines(response)))
    monkeypatch.setattr(watch, "_WATCH_S", 1)
    with FakeCluster(tmp_path) as fake, Mirror(connect(None, fake.kubeconfig), "v1", "Namespace", "", changed) as known:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}})
        while len(known.objects) < 2:
            changed.clear()
            assert len(known.objects) == 2 or changed.wait(10)
    asked = ["watch=true" in path for _, path in fake.requests if path.startswith("/api/v1/namespaces")]
    # Each watch comes after a list.
    assert asked.count(True) <= asked.count(False)


@pytest.mark.slow
@pytest.mark.parametrize(("status", "said"), [(0, "the connection broke"), (401, "on order of the test")])
def test_a_wait_ends_with_the_error_if_the_cluster_stays_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_S", 0.0)
    with rig(tmp_path) as cluster:
        cluster.deploy(*documents("good:1"))
        cluster.fake.controllers.scripts["starting"] = (Step("Running", RUNNING),)

        def lose() -> None:
            cluster.fake.faults.append(Fault("GET", "", status, times=10**6, reason="Unauthorized"))

        # The wait has begun when it watches events.
        cluster.fake.faults.append(Fault("GET", "/events.*watch=true", act=lose))
        with pytest.raises(ClusterError, match=said):
            cluster.deploy(*documents("starting:1"))
        assert cluster.record["result"] == "failed"
