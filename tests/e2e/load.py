"""A steady open-loop load in one thread: every request has its time, and its fate is known by name."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Sent:
    """One request. `began` is when the client turned to it, `written` when all of it was given to a connection."""

    began: float
    ended: float = 0.0
    connected: bool = False
    kept: bool = False
    written: float | None = None
    outcome: str = "open"
    refusal: bytes = b""

    @property
    def latency_s(self) -> float:
        return self.ended - self.began


@dataclass
class Load:
    """Sends `body` at `rate`, which may be changed meanwhile, until stopped; with `keep` every second request is on a
    connection that is used again."""

    port: int
    path: str
    body: bytes
    rate: float
    content_type: str = "application/json"
    keep: bool = False
    timeout_s: float = 60
    sent: list[Sent] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._stop = threading.Event()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()

    def finish(self) -> Counter[str]:
        """Sends no more, waits for what is open; how many requests ended in which way."""
        self._stop.set()
        self._thread.join()
        return Counter(request.outcome for request in self.sent)

    def latency_s(self, share: float, *, outcome: str = "200") -> float:
        """A percentile of the latencies, exact."""
        times = sorted(request.latency_s for request in self.sent if request.outcome == outcome)
        return times[min(len(times) - 1, int(share * len(times)))]

    async def _run(self) -> None:
        due, tasks = time.monotonic(), set()
        while not self._stop.is_set():
            due += 1 / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            request = Sent(time.monotonic())
            self.sent.append(request)
            task = asyncio.create_task(self._send(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        for _, writer in self._idle:
            writer.close()

    async def _send(self, request: Sent) -> None:
        try:
            request.outcome = await asyncio.wait_for(self._exchange(request), self.timeout_s)
        except ConnectionRefusedError:
            request.outcome = "refused"
        except TimeoutError:
            request.outcome = "timeout"
        except (OSError, EOFError) as err:
            request.outcome = type(err).__name__
        request.ended = time.monotonic()

    async def _exchange(self, request: Sent) -> str:
        keep = self.keep and len(self.sent) % 2 == 0
        request.kept = keep and bool(self._idle)
        reader, writer = self._idle.pop() if request.kept else await asyncio.open_connection("127.0.0.1", self.port)
        request.connected = True
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {self.content_type}\r\n"
        writer.write(f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body)
        request.written = time.monotonic()
        answer = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if line)
        text = await _body(reader, fields)
        if not answer.startswith(b"HTTP/1.1 200"):
            request.refusal = text
        if keep and fields.get(b"connection") != b"close":
            self._idle.append((reader, writer))
        else:
            writer.close()
        return answer.split(b" ", 2)[1].decode()


async def _body(reader: asyncio.StreamReader, fields: Mapping[bytes, bytes]) -> bytes:
    """All of the body; EOFError if its end does not come."""
    if b"content-length" in fields:
        return await reader.readexactly(int(fields[b"content-length"]))
    whole = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        whole += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return whole
