"""A load over https, whose connections rest between requests."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from certificates import self_signed
from loadtest_rig import SPEC, write_package

import marina
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest, generate

pytestmark = pytest.mark.e2e


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections = 0
    statuses: ClassVar[list[int]] = []

    def setup(self) -> None:
        super().setup()
        Handler.connections += 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.statuses.append(200 if self.headers["Authorization"] == "Bearer s3cret" else 401)
        self.send_response(Handler.statuses[-1])
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        body = json.dumps({"sha256": "ab" * 32}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[False])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a server that wants a token, and by parameter a certificate of its clients; and the one it has."""
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if request.param:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{listening.server_port}", Path(certificate)
        listening.shutdown()
        thread.join()


def test_a_connection_that_rested_is_used_again_and_no_request_is_lost(server: tuple[str, Path]) -> None:
    url, certificate = server
    headers = (("Authorization", "Bearer s3cret"),)
    request = LoadRequest(
        url=f"{url}/predictions/m", body=b"YQ==", content_type="text/plain", headers=headers, cacert=str(certificate)
    )
    # Two thirds of a second apart: longer than a connection rests without being looked at.
    schedule = Schedule(arrivals="constant", rate=1.5, warmup_s=0, duration_s=4)
    before = Handler.connections
    measured = generate(LoadPlan(request=request, schedule=schedule, timeout_s=10, limit_ms=1000))
    assert (measured.sent, measured.good, measured.errors) == (6, 6, {})
    assert Handler.connections == before + 1


def test_a_token_is_sent_and_written_nowhere(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url, certificate = server
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    write_package(tmp_path / "build/digits")
    monkeypatch.setenv("TOKEN", "s3cret")
    words = ["loadtest", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--url", url, "--any-package",
             "--cacert", str(certificate), "--header", "Authorization: Bearer $TOKEN",
             "--rate", "20", "--duration", "2", "--warmup", "0"]  # fmt: skip
    marina.main([*words, "--max-duration", "2"])
    verdict = json.loads((tmp_path / "build/digits/verdict.json").read_text(encoding="utf-8"))
    # The structure of the answer is another matter; without the token each would be a 401.
    assert set(verdict["runs"][0]["measurement"]["errors"]) == {"malformed"}
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"s3cret" in data for data in [*written, *map(str.encode, capfd.readouterr())])


@pytest.mark.parametrize("server", [True], indirect=True)
@pytest.mark.parametrize("shown", [True, False])
def test_a_server_that_wants_a_certificate_of_its_clients_is_shown_one(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    url, certificate = server
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    write_package(tmp_path / "build/digits")
    monkeypatch.setenv("TOKEN", "s3cret")
    words = ["loadtest", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--url", url,
             "--pages-url", url, "--cacert", str(certificate), "--header", "Authorization: Bearer $TOKEN",
             "--rate", "20", "--duration", "2", "--warmup", "0", "--max-duration", "2"]  # fmt: skip
    mine = ["--cert", str(certificate), "--key", str(tmp_path / "key.pem")] if shown else []
    marina.main([*words, *mine])
    verdict = json.loads((tmp_path / "build/digits/verdict.json").read_text(encoding="utf-8"))
    assert set(verdict["runs"][0]["measurement"]["errors"]) == ({"malformed"} if shown else {"broken"})
    assert verdict["tested"]["served"] == ("ab" * 32 if shown else None)


def test_servers_that_are_compared_get_the_token_over_tls_with_each_request_and_input(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate = server
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    write_package(tmp_path / "build/digits")
    monkeypatch.setenv("TOKEN", "s3cret")
    words = ["compare", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--url", url, "--against", url,
             "--any-package", "--cacert", str(certificate), "--header", "Authorization: Bearer $TOKEN",
             "--rate", "20", "--turn", "0.2", "--warmup", "0", "--max-duration", "1"]  # fmt: skip
    Handler.statuses.clear()
    assert marina.main([*words, "--quiet"]) == 3
    rounds = json.loads((tmp_path / "build/digits/compare.json").read_text(encoding="utf-8"))["rounds"]
    sent = sum(turn["sent"] for both in rounds for turn in (both["old"], both["new"]))
    # And the sample, of which both are asked the answer.
    assert Handler.statuses == [200] * (sent + 2)
    assert not any(b"s3cret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_certificate_that_is_not_trusted_is_an_error_and_no_verdict(
    server: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    url, certificate = server[0].replace("https", scheme), server[1]
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    write_package(tmp_path / "build/digits")
    words = ["loadtest", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "build"), "--url", url, "--any-package",
             "--rate", "20", "--duration", "1", "--warmup", "0", "--max-duration", "1"]  # fmt: skip
    assert marina.main(words) == 2
    said = capsys.readouterr().err
    assert f"`--url`: got `{server[0]}`, but no TLS connection can be made: self-signed certificate" in said
    assert "--cacert FILE" in said
    # Each answer is a 401; with plain HTTP, each would be broken.
    assert marina.main([*words, "--cacert", str(certificate)]) == 1
    assert "20 http 401" in capsys.readouterr().out


def test_a_key_without_its_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["loadtest", "config/examples/digits/spec.yaml", "--url", "https://x", "--key", "mine.key"]) == 2
    assert "`--key`: only together with `--cert`" in capsys.readouterr().err
