import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from marina.config.errors import ArchiveError, InputError
from marina.server.fetch import fetch
from marina.server.system.output import LogFile

MAR = b"model " * 1000
SHA256 = hashlib.sha256(MAR).hexdigest()


class Store:
    """A store that gives each of the scripted answers once, and then the MAR."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, int]] = []
        self.asked = 0


@pytest.fixture
def store() -> Iterator[tuple[str, Store]]:
    told = Store()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            code, body, length = told.answers.pop(0) if told.answers else (200, MAR, len(MAR))
            self.send_response(code)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/digits.mar", told
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_mar_is_downloaded_and_verified(tmp_path: Path, store: tuple[str, Store]) -> None:
    file = tmp_path / "model.mar"
    fetch(file, sha256=SHA256, url=store[0])
    assert file.read_bytes() == MAR
    assert [path.name for path in tmp_path.iterdir()] == ["model.mar"]


def test_what_is_there_already_is_not_downloaded_again(tmp_path: Path, store: tuple[str, Store]) -> None:
    file = tmp_path / "model.mar"
    file.write_bytes(MAR)
    fetch(file, sha256=SHA256, url=store[0])
    assert store[1].asked == 0


def test_another_file_than_the_package_is_refused_and_does_not_stay(tmp_path: Path, store: tuple[str, Store]) -> None:
    url, told = store
    told.answers = [(200, b"another", 7)]
    got = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(ArchiveError) as raised:
        fetch(tmp_path / "model.mar", sha256=SHA256, url=url)
    assert raised.value.message == f"{url}: got sha256 {got}, allowed: {SHA256}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_there", [True, False], ids=["in the volume", "downloaded"])
def test_the_file_is_read_once_to_verify_it(
    is_there: bool, tmp_path: Path, store: tuple[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, hashed = tmp_path / "model.mar", list[Path]()
    if is_there:
        file.write_bytes(MAR)
    monkeypatch.setattr("marina.server.fetch.file_sha256", lambda path: hashed.append(path) or SHA256)
    fetch(file, sha256=SHA256, url=store[0])
    assert hashed == [file]


@pytest.mark.parametrize("trouble", [(503, b"", 0), (200, MAR[:100], len(MAR))], ids=["refused", "cut off"])
def test_trouble_that_may_pass_is_waited_for(
    trouble: tuple[int, bytes, int], tmp_path: Path, store: tuple[str, Store]
) -> None:
    url, told = store
    told.answers = [trouble, trouble]
    fetch(tmp_path / "model.mar", sha256=SHA256, url=url, pause_s=0)
    assert told.asked == 3


def test_a_url_that_nobody_has_is_not_asked_for_twice(tmp_path: Path, store: tuple[str, Store]) -> None:
    url, told = store
    told.answers = [(404, b"", 0)]
    with pytest.raises(InputError, match="not downloaded: HTTP Error 404"):
        fetch(tmp_path / "model.mar", sha256=SHA256, url=url, pause_s=0)
    assert told.asked == 1


def test_a_volume_with_another_mar_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "model.mar"
    file.write_bytes(b"another")
    with pytest.raises(ArchiveError, match=f"{file}: got sha256 "):
        fetch(file, sha256=SHA256, url=None)
    assert file.read_bytes() == b"another"


def test_a_volume_without_the_mar_says_so() -> None:
    with pytest.raises(InputError, match="no such MAR in the volume"):
        fetch(Path("/nowhere/model.mar"), sha256=SHA256, url=None)


@pytest.mark.slow
def test_the_program_of_the_init_container_ends_with_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "model.mar"
    file.write_bytes(MAR)
    for sha256, code in ((SHA256, 0), ("0" * 64, 2)):
        command = [sys.executable, "-m", "marina.server.fetch", str(file), "--sha256", sha256]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code


class Stream:
    """Stands in for stderr."""

    def __init__(self) -> None:
        self.text = b""

    def write(self, data: bytes) -> None:
        self.text += data

    def flush(self) -> None: ...


def test_the_log_file_has_what_is_printed_in_two_pieces_at_most(tmp_path: Path) -> None:
    stream, file = Stream(), tmp_path / "server.log"
    log = LogFile(stream, file, piece_bytes=20)
    lines = [f"line {number}\n".encode() for number in range(10)]
    for line in lines:
        log.write(line)
    assert stream.text == b"".join(lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1"]
    kept = (tmp_path / "server.log.1").read_bytes() + file.read_bytes()
    assert b"".join(lines).endswith(kept)
    assert all(path.stat().st_size <= 20 for path in tmp_path.iterdir())
    assert kept.count(b"\n") >= 3
