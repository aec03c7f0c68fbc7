"""`marina judge` between two real servers, and its verdict as Argo Rollouts and Flagger read it."""

import json
import random
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest
from revisions import Revision, serving

from marina import main
from marina.loadtest.gating import LiveGate, LiveLimits, VerdictPage, stand_between

LIMITS = LiveLimits(error_rate=0.01, regression=0.2)


def asked(port: int, method: str, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body=b'{"name": "shells"}' if method == "POST" else None)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())["result"]


class ShortGate(LiveGate):
    """Stands until the old server was read thirty times."""

    def __init__(self, old: Revision) -> None:
        super().__init__(LIMITS, minutes=1)
        self.window_s, self.readings = 0.01, 0

        def read() -> None:
            self.readings += 1
            if self.readings == 30:
                self.seconds = 0

        old.on_reading = read


@pytest.mark.parametrize(
    ("new", "result", "promoted", "rolled_back"),
    [
        pytest.param({}, "PASS", 200, 403, id="equal"),
        pytest.param({"slower": 1.5}, "FAIL", 403, 200, id="slower"),
        pytest.param({"requests": 0}, "INVALID", 403, 403, id="no traffic"),
    ],
)
def test_each_verdict_as_other_engines_read_it(
    new: dict[str, float], result: str, promoted: int, rolled_back: int
) -> None:
    old, changed = Revision(), Revision(**new, dice=random.Random(2))  # type: ignore[arg-type]
    with ExitStack() as stack:
        for each in (old, changed):
            stack.enter_context(serving(each))
        page = VerdictPage()
        server = page.serve("127.0.0.1", 0)
        port = server.server_address[1]
        try:
            assert asked(port, "GET", "/") == (200, "RUNNING")
            assert asked(port, "POST", "/confirm-promotion")[0] == 403
            addresses = [[f"http://127.0.0.1:{each.port}"] for each in (old, changed)]
            page.verdict = stand_between(ShortGate(old), *addresses, lambda _: None)
            assert asked(port, "GET", "/") == (200, result)
            assert asked(port, "POST", "/confirm-promotion")[0] == promoted
            assert asked(port, "POST", "/rollback")[0] == rolled_back
            assert asked(port, "GET", "/other")[0] == 404
        finally:
            server.shutdown()
            server.server_close()


def test_the_verb_prints_the_verdict_and_exits_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = Revision(), Revision(failed=0.3, dice=random.Random(2))
    spec = tmp_path / "spec.yaml"
    model = "model: {source: 'torchvision:resnet18', weights: random}"
    spec.write_text(f"name: shells\nversion: '1'\n{model}\nslo: {{p99_ms: 50}}\n", encoding="utf-8")
    with serving(old), serving(new):
        sides = ["--old", f"http://127.0.0.1:{old.port}", "--new", f"http://127.0.0.1:{new.port}"]
        # A new version that fails so often ends it at the first look.
        code = main(["judge", str(spec), *sides, "--minutes", "1", "--quiet"])
    assert code == 1
    assert capsys.readouterr().out.startswith("FAIL, ")


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_the_verdict_is_served_on_every_kind_of_address(host: str) -> None:
    server = VerdictPage().serve(host, 0)
    try:
        assert asked(server.server_address[1], "GET", "/") == (200, "RUNNING")
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    model = "model: {source: 'torchvision:resnet18', weights: random}"
    spec.write_text(f"name: shells\nversion: '1'\n{model}\nslo: {{p99_ms: 50}}\n", encoding="utf-8")
    with serving(taken := Revision()):
        side = ["--old", "http://127.0.0.1:1", "--new", "http://127.0.0.1:2"]
        assert main(["judge", str(spec), *side, "--follow", "--port", str(taken.port)]) == 2
    assert f"`--port`: 127.0.0.1, port {taken.port}: " in capsys.readouterr().err
