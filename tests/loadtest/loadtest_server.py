"""A small HTTP server for the load tests: `python loadtest_server.py SHA256 --port-base N` listens on N and N + 10, on
localhost or, with `--host ADDRESS`, on that address. With `--mar FILE` it says that it serves that file.

`POST /behave` with JSON changes how it answers predictions: `delay_ms`, `status` with `body`, `broken` (closes in the
middle), `silent` (never answers), `drip_ms` (this long for each byte), `every` (only each n-th request misbehaves),
`after` (not the first n) and `until` (not those after n), `capacity` (requests/s of one worker with a queue of 100,
then it sheds), `freeze_s` (the whole process hangs, once), `first_ms` with `gap_ms` (`max_tokens` of the body as
events, as OpenAI's completions are; `cut` omits the end), `raw` (these bytes), `leaves` (answers well, then closes the
connection without saying so), `dies_after` (it exits after n predictions); `sha256` names
another package. `GET /seen` returns how many predictions came since, `/sizes` how many of each size; `/ready` and
`/package` are the supervisor's pages.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

GOOD = b'{"top_indices": [7, 1], "top_probs": [0.9, 0.1]}'
SHED = b'{"code": 503, "type": "ServiceUnavailableException", "message": "Model m has no worker to serve"}'
QUEUE = 100


class Behaviour:
    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256
        self.rules: dict[str, Any] = {}
        self.seen = 0
        self.sizes: Counter[int] = Counter()
        self.free_at = 0.0


def answer(status: int, body: bytes, close: bool = False) -> bytes:
    ending = "close" if close else "keep-alive"
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: {ending}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.data) < end + 4 + length:
                return
            body, self.data = self.data[end + 4 : end + 4 + length], self.data[end + 4 + length :]
            self.respond(head, body)

    def respond(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path.startswith(b"/predictions/"):
            self.behaviour.sizes[len(body)] += 1
            self.predict(body)
        elif path == b"/sizes":
            self.transport.write(answer(200, json.dumps(self.behaviour.sizes).encode()))
        elif path == b"/package":
            sha256 = self.behaviour.rules.get("sha256", self.behaviour.sha256)
            record = {"name": "digits", "version": "1.0", "sha256": sha256}
            self.transport.write(answer(200, json.dumps(record).encode()))
        elif path == b"/seen":
            self.transport.write(answer(200, str(self.behaviour.seen).encode()))
        elif path == b"/behave":
            self.behaviour.rules, self.behaviour.seen = json.loads(body), 0
            self.transport.write(answer(200, b"{}"))
        else:
            self.transport.write(answer(200 if path == b"/ready" else 404, b"{}"))

    def predict(self, body: bytes) -> None:
        rules = self.behaviour.rules
        self.behaviour.seen += 1
        if self.behaviour.seen == rules.get("dies_after"):
            os._exit(1)
        well = self.behaviour.seen % rules.get("every", 1) or not (
            rules.get("after", 0) < self.behaviour.seen <= rules.get("until", self.behaviour.seen)
        )
        if not rules.keys() - {"sha256"} or well:
            self.transport.write(answer(200, GOOD))
        elif "freeze_s" in rules:
            time.sleep(rules.pop("freeze_s"))
            self.transport.write(answer(200, GOOD))
        elif "first_ms" in rules:
            self.write_events(json.loads(body)["max_tokens"], rules)
        elif "drip_ms" in rules:
            loop = asyncio.get_running_loop()
            for at, byte in enumerate(answer(200, GOOD)):
                loop.call_later(at * rules["drip_ms"] / 1000, self.transport.write, bytes([byte]))
        elif "raw" in rules:
            self.transport.write(rules["raw"].encode())
        elif rules.get("leaves"):
            self.transport.write(answer(200, GOOD))
            self.transport.close()
        elif "capacity" in rules:
            self.queue(1 / rules["capacity"])
        elif rules.get("broken"):
            self.transport.write(answer(200, GOOD)[:-10])
            self.transport.close()
        elif not rules.get("silent"):
            answer_body = rules["body"].encode() if "body" in rules else GOOD
            self.later(rules.get("delay_ms", 0) / 1000, rules.get("status", 200), answer_body)

    def write_events(self, count: int, rules: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        moment = loop.time() + rules["first_ms"] / 1000
        for number in range(1, count + 1):
            choice = {"index": 0, "text": "a ", "finish_reason": "length" if number == count else None}
            data = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
            if number == count and not rules.get("cut"):
                usage = {"prompt_tokens": 10, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 4}}
                data += b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
            end = b"0\r\n\r\n" if number == count else b""
            loop.call_at(moment, self.transport.write, b"%x\r\n%b\r\n%b" % (len(data), data, end))
            moment += rules["gap_ms"] / 1000

    def queue(self, service_s: float) -> None:
        now = asyncio.get_running_loop().time()
        waits = max(self.behaviour.free_at, now) - now
        if waits > QUEUE * service_s:
            self.transport.write(answer(503, SHED, close=True))
            self.transport.close()
        else:
            self.behaviour.free_at = now + waits + service_s
            self.later(waits + service_s, 200, GOOD)

    def later(self, delay_s: float, status: int, body: bytes) -> None:
        if not delay_s:
            self.finish(status, body)
        else:
            asyncio.get_running_loop().call_later(delay_s, self.finish, status, body)

    def finish(self, status: int, body: bytes) -> None:
        self.transport.write(answer(status, body, close=status >= 400))
        if status >= 400:
            self.transport.close()


async def serve(host: str, port: int, sha256: str) -> None:
    loop, behaviour = asyncio.get_running_loop(), Behaviour(sha256)
    for number in (port, port + 10):
        await loop.create_server(lambda: Connection(behaviour), host, number, backlog=1024)
    terminated = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, terminated.set)
    print("ready", flush=True)
    await terminated.wait()
    print("terminated", flush=True)


if __name__ == "__main__":
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=False))
    served = hashlib.sha256(Path(options["--mar"]).read_bytes()).hexdigest() if "--mar" in options else sys.argv[1]
    asyncio.run(serve(options.get("--host", "127.0.0.1"), int(options["--port-base"]), served))
