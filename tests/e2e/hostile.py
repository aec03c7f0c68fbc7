"""Requests that TorchServe answers without ever counting them as arrivals, or cannot read at all, as the bytes of a
client; and a client for bytes."""

import json
import socket
from dataclasses import dataclass

SECRET = b"what-nobody-may-repeat"
_HOST = b"Host: x\r\n"


@dataclass(frozen=True)
class Raw:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """Its body in Marina's form."""
        answer = json.loads(self.body)
        assert isinstance(answer, dict)
        assert isinstance(answer["error"], str)
        return answer


def posted(path: str, headers: bytes, body: bytes = SECRET) -> bytes:
    """A POST with a length."""
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    return f"POST {path} HTTP/1.1\r\n".encode() + _HOST + headers + length + body


def uncounted(name: str) -> dict[str, tuple[bytes, int]]:
    """Each kind for the model `name`, with the status that it gets."""
    path = f"/predictions/{name}"
    plain = f"POST {path} HTTP/1.1\r\n".encode() + _HOST
    form = b"Content-Type: application/x-www-form-urlencoded\r\n"
    many, large = b"X:\r\n" * 300, b"X: " + SECRET * 400 + b"\r\n"
    part = b"--b\r\nContent-Disposition: form-data%s\r\n%s\r\n" + SECRET + b"\r\n--b--\r\n"
    multipart = b"Content-Type: multipart/form-data; boundary=b\r\n"
    return {
        "form": (posted(path, form, b"a=%ZZ" + SECRET), 415),
        "preflight": (f"OPTIONS {path} HTTP/1.1\r\n".encode() + _HOST + b"Content-Length: 0\r\n\r\n", 200),
        "large headers": (plain + b"X: " + SECRET * 500 + b"\r\n\r\n", 431),
        "long line": (b"GET /" + SECRET * 500 + b" HTTP/1.1\r\n\r\n", 414),
        "NUL in a header's name": (posted(path, b"X\0Y: " + SECRET + b"\r\n"), 400),
        "header's name beyond ASCII": (posted(path, b"X\xc3\xa9: " + SECRET + b"\r\n"), 400),
        "two lengths": (plain + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        "length in words": (plain + b"Content-Length: " + SECRET + b"\r\n\r\n", 400),
        "length with a sign": (plain + b"Content-Length: +2\r\n\r\n{}", 400),
        "a coding that is none": (plain + b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", 400),
        "two codings": (plain + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        "two kinds of length": (
            plain + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            400,
        ),
        "many headers": (posted(path, many), 431),
        "many headers and no end": (plain + many, 431),
        "much after the last chunk": (plain + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + many, 400),
        "negative length": (plain + b"Content-Length: -1\r\n\r\n", 400),
        "multipart without a name": (posted(path, multipart, part % (b"", b"")), 400),
        "multipart of an unknown charset": (
            posted(path, multipart, part % (b'; name="a"', b"Content-Type: text/plain; charset=" + SECRET + b"\r\n")),
            400,
        ),
        "parts without a boundary": (posted(path, multipart.replace(b"=b", b"="), part % (b'; name="a"', b"")), 400),
        "many parts": (posted(path, multipart, part % (b'; name="a"', b"") * 1001), 400),
        "a part with a large head": (posted(path, multipart, part % (b'; name="a"', large)), 400),
        "a part of parts": (
            posted(path, multipart, part % (b'; name="a"', b"Content-Type: multipart/mixed; boundary=c\r\n")),
            400,
        ),
        "parts in letters of another kind": (
            posted(
                path,
                b"Content-Type: multipart/form-data; boundary=b; charset=utf-16le\r\n",
                b"--b\r\n" + 'Content-Disposition: form-data; name="a"'.encode("utf-16le") + b"\r\n\r\n--b--\r\n",
            ),
            400,
        ),
        "a fragment": (posted(f"{path}#" + SECRET.decode(), b"", b"{}"), 400),
        "invocation of another model": (posted("/invocations?model_name=" + SECRET.decode(), b""), 404),
        "another server's address": (b"CONNECT 127.0.0.1:8081 HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        "an address of nobody": (posted("x://", b""), 400),
        "an address without a host": (posted("http:///" + SECRET.decode(), b""), 400),
        "options of nothing": (b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        "a chunk of less than nothing": (plain + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + SECRET, 400),
        "an unknown expectation": (posted(path, b"Expect: 200-" + SECRET + b"\r\n"), 417),
        "escape bytes": (posted("/\x1b[2J" + SECRET.decode() + "?\x1b", b""), 400),
        "broken chunks": (plain + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n", 400),
        "declared too large": (plain + b"Content-Length: 4000000000000\r\n\r\n" + SECRET, 413),
    } | ambiguous(path)


def ambiguous(path: str) -> dict[str, tuple[bytes, int]]:
    """What another server may take for another request, or for several."""
    plain = f"POST {path} HTTP/1.1\r\n".encode() + _HOST
    old, chunked = plain.replace(b"1.1", b"1.0"), b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "a line without CR": (posted(path, b"X: " + SECRET + b"\n", b"{}"), 400),
        "lines without CR and no end": (b"POST / HTTP/1.1\nX: " + SECRET, 400),
        "a space before the first header": (plain.replace(b"Host", b" Host") + b"Content-Length: 0\r\n\r\n", 400),
        "a folded header": (posted(path, b"X: a\r\n " + SECRET + b"\r\n", b"{}"), 400),
        "a control byte in a value": (posted(path, b"X: \x7f" + SECRET + b"\r\n", b"{}"), 400),
        "two hosts": (posted(path, _HOST, b"{}"), 400),
        "two lengths of old": (old + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        "chunks of old": (old + chunked + b"2\r\n{}\r\n0\r\n\r\n", 400),
        "a chunk's size without CR": (plain + chunked + b"2;" + SECRET + b"\n{}\r\n0\r\n\r\n", 400),
        "more than a chunk": (plain + chunked + b"2\r\n{}" + SECRET + b"\r\n0\r\n\r\n", 400),
    }


def exchange(port: int, request: bytes, *, timeout_s: float = 60) -> Raw:
    """Sends the bytes and reads one answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Raw:
    """One answer with a length."""
    with connection.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        headers: dict[str, str] = {}
        while line := stream.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return Raw(status, headers, stream.read(int(headers.get("content-length", "0"))))
