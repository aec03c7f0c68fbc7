"""Tiny wheels for tests, and an index on loopback that has them."""

import base64
import hashlib
import http.server
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with these files; by default one module with its version."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel, described = folder / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    needs += "".join(f"Provides-Extra: {extra}\n" for extra in re.findall("extra == '(.+)'", needs))
    pure = "false" if tag.endswith("x86_64") else "true"
    content: dict[str, str | bytes] = {
        **(files or {f"{name}.py": f"VERSION = {version!r}\n"}),
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{described}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {pure}\nTag: {tag}\n",
    }
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            data = text.encode() if isinstance(text, str) else text
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            archive.writestr(zipfile.ZipInfo(path), data)
        archive.writestr(zipfile.ZipInfo(f"{described}/RECORD"), record + f"{described}/RECORD,,\n")
    return wheel


@contextmanager
def serving_index(wheels: Path) -> Iterator[str]:
    """An index of the wheels in the folder that asks for the user `me` and the password `secret`; yields its URL, with
    both."""
    for wheel in wheels.glob("*.whl"):
        page = wheels / "simple" / wheel.name.partition("-")[0].lower().replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="/{wheel.name}">{wheel.name}</a>', encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, directory=str(wheels)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://me:secret@127.0.0.1:{server.server_port}/simple/"
    finally:
        server.shutdown()
        server.server_close()


class _Index(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode():
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
