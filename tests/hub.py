"""A hub on loopback that answers `huggingface_hub`'s own client as Hugging Face's does."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


def files_in(folder: Path) -> Files:
    """The files of a folder, by their path in it."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@dataclass
class Hub:
    """What it has, and how it behaves."""

    url: str = ""
    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    """By model: the files of each commit."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """By model: the commit of each branch."""
    gated: set[str] = field(default_factory=set)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers that are answered first, one to a request."""
    cut: int | None = None
    """After how many bytes the next longer file is cut off."""
    asked: list[str] = field(default_factory=list)
    """Method, path and range of every request."""

    stop: Callable[[], object] = lambda: None
    """Stops it; nobody is answered any more."""

    def push(self, model: str, files: Files, branch: str = "main") -> str:
        """Makes a commit of a branch; returns it."""
        digest = hashlib.sha1(model.encode())
        for name in sorted(files):
            digest.update(name.encode() + files[name])
        commit = digest.hexdigest()
        self.commits.setdefault(model, {})[commit] = files
        self.branches.setdefault(model, {})[branch] = commit
        return commit


@contextmanager
def serving_hub() -> Iterator[Hub]:
    hub = Hub()

    class Answers(BaseHTTPRequestHandler):
        # No connection is kept, so that a hub that is stopped answers nobody.
        protocol_version = "HTTP/1.0"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
            if hub.refusals:
                status, headers = hub.refusals.pop(0)
                self._answer(status, b"", headers)
                return
            parts = path.removeprefix("api/models/").split("/")
            model, rest = "/".join(parts[:2]), parts[2:]
            if model not in hub.commits:
                self._answer(401, b"", {"X-Error-Message": "Invalid username or password."})
                return
            revision = rest[1] if len(rest) > 1 else "main"
            commit = hub.branches[model].get(revision, revision)
            files = hub.commits[model].get(commit)
            if files is None:
                self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            elif model in hub.gated and "api/" not in self.path:
                self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
            elif path.startswith("api/"):
                siblings = [{"rfilename": name, "size": len(data)} for name, data in sorted(files.items())]
                info = {"id": model, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
                self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
            elif (data := files.get("/".join(rest[2:]))) is None:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            else:
                etag = hashlib.sha256(data).hexdigest()
                self._answer(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
            if status == 200 and int(start):
                status, body = 206, body[int(start) :]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET" and hub.cut is not None and len(body) > hub.cut:
                body, hub.cut = body[: hub.cut], None
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    hub.stop = stop
    try:
        yield hub
    finally:
        stop()
