"""A client of streams that takes little of the processor: many at once in one thread, each event with its time."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Stream:
    """What came of one request: when its events came, its bytes, and whether the connection broke."""

    sent_at: float = 0.0
    times: list[float] = field(default_factory=list)
    body: bytes = b""
    broke: bool = False

    @property
    def status(self) -> int:
        return int(self.body.split(b" ", 2)[1]) if self.body else 0

    @property
    def ended(self) -> bool:
        """The last event, and the end of the body after it: an answer that is there at once comes in no chunks."""
        head, _, content = self.body.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        whole = len(content) >= int(length[1]) if length else content.endswith(b"0\r\n\r\n")
        return whole and b"data: [DONE]" in content


async def stream(
    port: int,
    path: str,
    body: dict[str, object],
    *,
    most: int | None = None,
    headers: Mapping[str, str] | None = None,
    seen: Stream | None = None,
) -> Stream:
    """Sends one request and reads its events, into `seen` for who looks meanwhile; leaves after `most` of them."""
    text = json.dumps(body | {"stream": True}).encode()
    given = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(text)} | dict(headers or {})
    fields = "\r\n".join(f"{name}: {value}" for name, value in given.items())
    head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
    seen = seen or Stream()
    seen.sent_at = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + text)
        while not seen.ended and (most is None or len(seen.times) < most):
            data = await reader.read(65536)
            now = time.monotonic()
            seen.times += [now] * data.count(b'"finish_reason"')
            seen.body += data
            if not data:
                break
            if seen.status != 200:
                break
    except ConnectionError:
        seen.broke = True
    finally:
        writer.close()
    return seen


async def streams(port: int, path: str, bodies: list[dict[str, object]], *, most: int | None = None) -> list[Stream]:
    """All at once."""
    return await asyncio.gather(*(stream(port, path, body, most=most) for body in bodies))
