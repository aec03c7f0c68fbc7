"""Raw bytes for a connection, made from a seed: HTTP that is none, that lies, or that asks for too much at once."""

import gzip
import json
import random
from collections.abc import Iterator


def streams(count: int, seed: int, path: str) -> Iterator[bytes]:
    """Raw bytes for a connection."""
    chance = random.Random(seed)
    post = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode()
    fixed = [
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        post + b"Content-Length: five\r\n\r\nhello",
        post + b"Content-Length: -1\r\n\r\n",
        post + b"Content-Length: 99999999999999\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        post + b"Content-Type: multipart/form-data\r\nContent-Length: 2\r\n\r\nab",
        post + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n\r\na=%ZZ",
        post + b"X" * 9000 + b": 1\r\nContent-Length: 0\r\n\r\n",
        post + b"A\0B: 1\r\nContent-Length: 0\r\n\r\n",
        post + b"\xc3\xa9: 1\r\nContent-Length: 0\r\n\r\n",
        post + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        post + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        f"OPTIONS {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        f"GET {path} HTTP/9.9\r\nHost: x\r\n\r\n".encode(),
        f"POST {path}?a=%ZZ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode(),
        b"POST /invocations?model_name=x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"CONNECT 127.0.0.1:8081 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        f"POST http://elsewhere{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode(),
        post + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
        post + b"Expect: 200-ok\r\nContent-Length: 5\r\n\r\nhello",
        post
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nContent-Length: 0\r\n\r\n",
        post + b"Inference-Header-Content-Length: 99999999999999999999\r\nContent-Length: 2\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01",
        b"\0" * 2000,
        *_pipelined(path),
        *_of_protocols(path.split("/")[2]),
        *_chunked(post),
        post + b"".join(b"X-%d: y\r\n" % number for number in range(700)) + b"Content-Length: 0\r\n\r\n",
        post + b"X: y\r\n" * 1200 + b"Content-Length: 2\r\n\r\n{}",
        post + b"Content-Encoding: gzip\r\n" + _sized(gzip.compress(b"{}")),
        post + b"Content-Encoding: deflate, gzip, br, zstd\r\n" + _sized(gzip.compress(bytes(5_000_000))),
        post + b"Content-Type: multipart/form-data; boundary=" + b"b" * 3000 + b"\r\n" + _sized(b"--b"),
        post + b'Content-Type: multipart/form-data; boundary="\r\n' + _sized(b"--"),
        post + b"X-Request-Timeout-Ms: 0000001000" + b"0" * 400 + b"\r\n" + _sized(b"{}"),
        post + b"X-Request-Timeout-Ms: -1\r\nX-Priority: " + b"9" * 500 + b"\r\n" + _sized(b"{}"),
    ]
    yield from fixed
    for _ in range(count - len(fixed)):
        data = bytearray(chance.choice(fixed))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        yield bytes(data)


def _sized(body: bytes) -> bytes:
    """The end of a head, and the body."""
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def _pipelined(path: str) -> Iterator[bytes]:
    """Hundreds of requests at once on one connection."""
    post = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + _sized(b"{}")
    get = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    yield get * 500
    yield post * 300
    yield (post + get) * 200
    yield get * 300 + b"GET / HTTP/1.1\r\nHost"


def _of_protocols(name: str) -> Iterator[bytes]:
    """KServe's protocols, whose sizes are told apart from the bytes."""
    tensor = {"name": "x", "shape": [64], "datatype": "FP32", "parameters": {"binary_data_size": 256}}
    sizes = (0, 1, 255, 257, -1, 2**31, 2**63, 2**70, 1.5, "256", None, [256])
    post = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\n".encode()
    for size in sizes:
        told = {"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}
        header = json.dumps(told).encode()
        for length in (len(header), len(header) - 1, 0, 10**9):
            yield post + b"Inference-Header-Content-Length: %d\r\n" % length + _sized(header + bytes(256))
    for shape in ([2**40], [-1], [0], [8] * 40, ["64"], [2**62, 4]):
        yield post + _sized(json.dumps({"inputs": [tensor | {"shape": shape}]}).encode())


def _chunked(post: bytes) -> Iterator[bytes]:
    """Chunks as no client makes them."""
    for size in (
        b"0x2",
        b"2;" + b"a" * 5000,
        b" 2",
        b"+2",
        b"00000000000000002",
        b"FFFFFFFFFFFFFFFF",
        b"7FFFFFFF",
        b"",
    ):
        yield post + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}\r\n0\r\n\r\n"
    yield post + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n"
    yield post + b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    yield post + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    yield post + b"Transfer-Encoding:\x0bchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    yield post + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n"
